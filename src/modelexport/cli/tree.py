"""`modelexport tree`: the module tree of an exported model, with node and parameter counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.cli.output import Format, Output, ReportFile, ReportFormatOption, json_text, rendered
from modelexport.display import counted, printable
from modelexport.errors import FileFormatError
from modelexport.hierarchy import MAX_DEPTH, parent_path

if TYPE_CHECKING:
    from rich.tree import Tree

    from modelexport.analysis.query import ModuleStatistics, PrintedTree
    from modelexport.storage import ModelFile


def tree(
    *,
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote.", show_default=False)],
    depth: Annotated[int | None, typer.Option(min=0, help="How many levels below the root to show.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show modules that own no node.")] = False,
    output_format: ReportFormatOption = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Show the module tree of a file with node and parameter counts.

    Examples:

        modelexport tree model.onnx

        modelexport tree model.onnx --depth 2 --format json
    """
    form = report.form(output_format, Format)
    report.check(file)
    from modelexport.analysis.query import count_modules
    from modelexport.storage import read_model

    loaded = read_model(file)
    if loaded.document is None and not loaded.stored:
        raise FileFormatError(
            f"{file} has no hierarchy of ours ({loaded.missing}, and no node is tagged): "
            "export the model with modelexport export"
        )
    if loaded.document is None:
        out.note(f"note: {loaded.missing}; the tree is that of the tags in the file")
    if form is Format.JSON:
        report.write(json_text(msgspec.to_builtins(_printed(loaded, depth, everything))), out)
    elif loaded.document is not None:
        modules = _selected(count_modules(loaded.document), depth, everything)
        report.write(rendered(_module_tree(modules), report.width), out)
    else:
        report.write(rendered(_tag_tree(loaded.tag_counts(), depth), report.width), out)


def _printed(loaded: ModelFile, depth: int | None, everything: bool) -> PrintedTree:
    from modelexport.analysis.query import PrintedTree, count_modules

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
    from rich.text import Text
    from rich.tree import Tree

    branches: dict[str, Tree] = {}
    for module in modules:
        name = module.path.rpartition(".")[2]
        label = Text(overflow="fold")
        if name:
            label.append(f"{printable(name)}: ", style="dim")
        label.append(printable(module.class_name), style="bold")
        if module.calls > 1:
            label.append(f" called {module.calls} times", style="yellow")
        label.append(f"  {counted(module.nodes, 'node')}", style="cyan")
        if module.own_nodes and module.own_nodes != module.nodes:
            label.append(f" ({module.own_nodes} own)", style="dim")
        if module.parameters:
            label.append(f"  {counted(module.parameters, 'parameter')}", style="green")
        above = parent_path(module.path)
        branches[module.path] = Tree(label) if above is None else branches[above].add(label)
    return branches[""]


def _tag_tree(counts: dict[str, int], depth: int | None) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    top = Tree(Text(counted(sum(counts.values()), "node"), style="cyan"))
    branches: dict[tuple[str, ...], Tree] = {(): top}
    most = MAX_DEPTH if depth is None else min(MAX_DEPTH, depth + 1)
    inside: Counter[tuple[str, ...]] = Counter()
    for tag in sorted(counts):
        segments = tuple(tag.split("/", most + 1)[1 : most + 1])
        for length in range(1, len(segments) + 1):
            inside[segments[:length]] += counts[tag]
    for path, nodes in inside.items():
        label = Text(printable(path[-1]), style="bold", overflow="fold")
        label.append(f"  {counted(nodes, 'node')}", style="cyan")
        branches[path] = branches[path[:-1]].add(label)
    return top
