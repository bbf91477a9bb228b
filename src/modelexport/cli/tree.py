"""`modelexport tree`: the module tree of an exported model, with node and parameter counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.cli.output import Format, Output, ReportFile, ReportFormatOption, json_text, rendered
from modelexport.display import counted, printable
from modelexport.hierarchy import parent_path

if TYPE_CHECKING:
    from rich.tree import Tree

    from modelexport.analysis.query import ModuleStatistics
    from modelexport.hierarchy import HierarchyDocument


def tree(
    *,
    file: Annotated[
        Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.", show_default=False)
    ],
    depth: Annotated[int | None, typer.Option(min=0, help="How many levels below the root to show.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show modules without nodes and parameters.")] = False,
    output_format: ReportFormatOption = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Show the module tree of a file with node and parameter counts.

    Reads files of modelexport, with or without their sidecar, and files of torch's own exporters. A module without
    nodes is shown if it has parameters; "fused" says that nodes of other modules do its work.

    Examples:

        modelexport tree model.onnx

        modelexport tree model.onnx --depth 2 --format json
    """
    form = report.form(output_format, Format)
    report.check(file)
    from modelexport.analysis.query import PrintedTree, count_modules
    from modelexport.storage import find_hierarchy, read_model

    loaded = read_model(file)
    found = find_hierarchy(loaded)
    if loaded.missing:
        out.note(f"note: {'; '.join((loaded.missing, *found.missing))}")
    document = found.document
    modules = _selected(count_modules(document), depth, everything)
    if form is Format.JSON:
        printed = PrintedTree(
            file=str(loaded.path),
            origin=found.origin,
            strategy=document.strategy,
            coverage=document.coverage,
            kinds=document.kinds,
            modules=tuple(modules),
            tags=dict(Counter(node.tag for node in document.nodes)),
            size_ranges=document.size_ranges,
        )
        report.write(json_text(msgspec.to_builtins(printed)), out)
    else:
        from rich.console import Group

        ranges = document.size_ranges.items()
        sizes = [printable(f"valid for the sizes {name} = {limits}") for name, limits in ranges]
        report.write(rendered(Group(_module_tree(modules, _fused_modules(document)), *sizes), report.width), out)


def _selected(modules: list[ModuleStatistics], depth: int | None, everything: bool) -> list[ModuleStatistics]:
    return [
        module
        for module in modules
        if (everything or module.nodes or module.parameters or module.path == "")
        and (depth is None or (module.path.count(".") + 1 if module.path else 0) <= depth)
    ]


def _fused_modules(document: HierarchyDocument) -> set[str]:
    """The modules whose work nodes of other modules do."""
    contributors = {call for node in document.nodes for call in node.contributors}
    return {call.path for call in document.calls if call.id in contributors}


def _module_tree(modules: list[ModuleStatistics], fused: set[str]) -> Tree:
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
        if not module.nodes and module.path in fused:
            label.append(" (fused)", style="dim")
        if module.own_nodes and module.own_nodes != module.nodes:
            label.append(f" ({module.own_nodes} own)", style="dim")
        if module.parameters:
            label.append(f"  {counted(module.parameters, 'parameter')}", style="green")
        above = parent_path(module.path)
        branches[module.path] = Tree(label) if above is None else branches[above].add(label)
    return branches[""]
