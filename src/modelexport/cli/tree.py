"""`modelexport tree`: the module tree of an exported model, with node and parameter counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text
from rich.tree import Tree

from modelexport.analysis.statistics import ModuleStatistics, count_modules
from modelexport.cli.output import OutputFormat, message_console, print_json, printable, result_console
from modelexport.errors import FileFormatError
from modelexport.hierarchy import MAX_DEPTH, parent_path
from modelexport.reading import ModelFile, read_model
from modelexport.schemas import json_schema


def tree(
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote.")],
    depth: Annotated[int | None, typer.Option(min=0, help="How many levels below the root to show.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show modules that no node belongs to.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Print the module tree of an exported model with node and parameter counts.

    Examples:

        modelexport tree model.onnx

        modelexport tree model.onnx --depth 2 --format json
    """
    loaded = read_model(file)
    if loaded.document is None and not loaded.stored:
        raise FileFormatError(
            f"{file} has no hierarchy of ours ({loaded.missing}, and no node is tagged): "
            "export the model with modelexport export"
        )
    if loaded.document is None:
        message_console().print(f"note: {printable(loaded.missing)}; shown from the tags in the file", markup=False)
    if output_format is OutputFormat.JSON:
        print_json(msgspec.to_builtins(_printed(loaded, depth, everything)))
    elif loaded.document is not None:
        modules = _selected(count_modules(loaded.document), depth, everything)
        result_console().print(_module_tree(modules))
    else:
        result_console().print(_tag_tree(loaded.tag_counts(), depth))


class PrintedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A module tree as it is printed.

    Attributes:
        file: The file.
        strategy: The strategy that made the hierarchy; like the next three None without a sidecar.
        coverage: The part of the nodes that has an owner.
        kinds: Nodes by kind of attribution.
        modules: The modules, each behind the one around it.
        tags: Nodes by the tag they carry.
    """

    file: str
    strategy: str | None = None
    coverage: float | None = None
    kinds: dict[str, int] | None = None
    modules: tuple[ModuleStatistics, ...] | None = None
    tags: dict[str, int]


def tree_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport tree --format json`` prints."""
    return json_schema("modelexport tree", PrintedTree)


def _printed(loaded: ModelFile, depth: int | None, everything: bool) -> PrintedTree:
    if loaded.document is None:
        return PrintedTree(file=str(loaded.path), tags=loaded.tag_counts())
    return PrintedTree(
        file=str(loaded.path),
        strategy=loaded.document.strategy,
        coverage=loaded.document.coverage,
        kinds=loaded.document.kinds,
        modules=tuple(_selected(count_modules(loaded.document), depth, everything)),
        tags=loaded.tag_counts(),
    )


def _selected(modules: list[ModuleStatistics], depth: int | None, everything: bool) -> list[ModuleStatistics]:
    return [
        module
        for module in modules
        if (everything or module.nodes or module.path == "")
        and (depth is None or (module.path.count(".") + 1 if module.path else 0) <= depth)
    ]


def _module_tree(modules: list[ModuleStatistics]) -> Tree:
    branches: dict[str, Tree] = {}
    for module in modules:
        name = module.path.rpartition(".")[2]
        label = Text()
        if name:
            label.append(f"{printable(name)}: ", style="dim")
        label.append(printable(module.class_name), style="bold")
        if module.calls > 1:
            label.append(f" called {module.calls} times", style="yellow")
        label.append(f"  {_counted(module.nodes, 'node')}", style="cyan")
        if module.own_nodes and module.own_nodes != module.nodes:
            label.append(f" ({module.own_nodes} own)", style="dim")
        if module.parameters:
            label.append(f"  {_counted(module.parameters, 'parameter')}", style="green")
        above = parent_path(module.path)
        branches[module.path] = Tree(label) if above is None else branches[above].add(label)
    return branches[""]


def _tag_tree(counts: dict[str, int], depth: int | None) -> Tree:
    top = Tree(Text(_counted(sum(counts.values()), "node"), style="cyan"))
    branches: dict[tuple[str, ...], Tree] = {(): top}
    most = MAX_DEPTH if depth is None else min(MAX_DEPTH, depth + 1)
    inside: Counter[tuple[str, ...]] = Counter()
    for tag in sorted(counts):
        segments = tuple(tag.split("/", most + 1)[1 : most + 1])
        for length in range(1, len(segments) + 1):
            inside[segments[:length]] += counts[tag]
    for way, nodes in inside.items():
        label = Text(printable(way[-1]), style="bold")
        label.append(f"  {_counted(nodes, 'node')}", style="cyan")
        branches[way] = branches[way[:-1]].add(label)
    return top


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
