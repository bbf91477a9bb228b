"""`modelexport analyze`: statistics of a file by module and by class, and the nodes that are not exact."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.cli.options import LimitOption, SelectOption
from modelexport.cli.output import ROOT, Output, ReportFile, format_option, json_text
from modelexport.cli.pages import Section, as_csv, as_html, as_markdown, as_text, limited
from modelexport.display import Cell, counted, shortened

if TYPE_CHECKING:
    from modelexport.analysis.query import AnalysisReport, RankedModule

_KINDS = ("exact", "fused", "merged", "folded", "inferred")
# A line or a cell lists at most this many operators.
_MAX_OPERATORS = 8
_MAX_OPERATOR_LENGTH = 80


class AnalysisFormat(enum.StrEnum):
    """The formats of an analysis."""

    HUMAN = "human"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    HTML = "html"


def analyze(
    *,
    file: Annotated[
        Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.", show_default=False)
    ],
    select: SelectOption = None,
    depth: Annotated[int | None, typer.Option(min=0, help="Modules down to this many levels below the root.")] = None,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="Every module, class and tag, not only the largest.")
    ] = False,
    details: Annotated[
        bool,
        typer.Option("--show-resolution-details", help="Every node whose owner is not exact: candidates and reason."),
    ] = False,
    limit: LimitOption = None,
    output_format: Annotated[
        AnalysisFormat | None,
        format_option("For people, programs, spreadsheets or documents."),
    ] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Count the nodes, operators and parameters of a file, by module and by class.

    Reads files of modelexport, with or without their sidecar, and files of torch's own exporters. JSON and CSV have
    every module; with --show-resolution-details, CSV lists nodes instead.

    Examples:

        modelexport analyze model.onnx

        modelexport analyze model.onnx --detailed --depth 2

        modelexport analyze model.onnx --select 'class:LayerNorm and not encoder.layer.0' --format json

        modelexport analyze model.onnx --format csv -o modules.csv --force

        modelexport analyze model.onnx --show-resolution-details
    """
    form = report.form(output_format, AnalysisFormat)
    report.check(file)
    from modelexport.analysis.query import analyze as analyze_file

    with out.working(f"reading {file}"):
        found = analyze_file(file, selector=select, depth=depth, resolution=details)
    report.write(render(found, form, report.width, limit=report.rows(limit), detailed=detailed), out)


def render(found: AnalysisReport, form: AnalysisFormat, width: int, *, limit: int, detailed: bool) -> str:
    """An analysis as text in one of the formats."""
    if form is AnalysisFormat.JSON:
        return json_text(msgspec.to_builtins(found))
    if form is AnalysisFormat.CSV:
        if found.resolution is not None:
            return as_csv(_RESOLUTION_HEADERS, _resolution_rows(found))
        return as_csv(_MODULE_HEADERS, _module_rows(found))
    overview = Section("", tuple(_overview(found)))
    tables = _everything(found) if detailed else _largest(found, limit)
    sections = [overview, *(section for section in tables if section.rows), *_resolution(found)]
    if form is AnalysisFormat.MARKDOWN:
        return as_markdown(found.file, sections)
    if form is AnalysisFormat.HTML:
        return as_html(found.file, sections)
    return as_text(found.file, sections, width)


def _overview(found: AnalysisReport) -> Iterator[str]:
    yield f"hierarchy from: {found.origin} (strategy {found.strategy}, exporter {found.exporter})"
    yield from (f"note: {text}" for text in found.missing)
    if found.selector is not None:
        yield f"selected by {found.selector}: {found.nodes:,} of {found.all_nodes:,} nodes"
    kinds = ", ".join(f"{found.kinds[kind]:,} {kind}" for kind in _KINDS if found.kinds.get(kind))
    yield f"nodes: {found.nodes:,} ({kinds}), {found.coverage:.1%} with an owner"
    yield f"mean confidence: {found.mean_confidence:.3f}"
    depth = counted(found.deepest, "level")
    yield f"modules: {len(found.modules):,}, at most {depth} deep; {counted(found.calls, 'call')}"
    yield f"parameters: {found.parameters:,} ({_bytes(found.parameter_bytes)})"
    weights = found.weights
    where = f", {weights.external:,} of them external" if weights.external else ""
    yield f"weights in the file: {counted(weights.tensors, 'tensor')}, {_bytes(weights.bytes)}{where}"
    tags = found.tags
    repeated = f"{tags.of_repeated_calls:,} of repeated calls"
    yield f"tags: {tags.distinct:,} different, at most {counted(tags.deepest, 'segment')}, {repeated}"
    yield f"operations: {_counts(found.operations, _MAX_OPERATORS)}"


def _largest(found: AnalysisReport, limit: int) -> Iterator[Section]:
    yield _ranking("Modules with most nodes of their own", "nodes", found.largest, limit)
    yield _ranking("Modules with most parameters of their own", "parameters", found.heaviest, limit)
    yield _ranking("Modules called most often", "calls", found.most_called, limit)
    yield _class_table("Classes with most nodes", found, limit)
    yield limited("Tags with most nodes", ("nodes", "tag"), _tag_rows(found), limit)


def _everything(found: AnalysisReport) -> Iterator[Section]:
    sizes = ("depth", "calls", "own", "nodes", "parameters", "bytes")
    headers = ("module", "class", *sizes, *_KINDS, "lowest", "operations")
    left_out = {"qualified_class", "tag", "own_parameters"}
    shown = [position for position, name in enumerate(_MODULE_HEADERS) if name not in left_out]
    rows = ((row[0] or ROOT, *(row[position] for position in shown[1:])) for row in _module_rows(found, _MAX_OPERATORS))
    yield limited("By module", headers, rows, 0, ("operations", "lowest", *_KINDS, "bytes", "depth", "calls"))
    yield _class_table("By class", found, 0)
    yield limited("By tag", ("nodes", "tag"), _tag_rows(found), 0)


def _class_table(title: str, found: AnalysisReport, limit: int) -> Section:
    headers = ("class", "modules", "calls", "nodes", "parameters", "bytes", "operations", "qualified class")
    rows = (
        (
            c.class_name,
            c.modules,
            c.calls,
            c.nodes,
            c.parameters,
            c.parameter_bytes,
            _counts(c.operations, 5),
            c.qualified_class,
        )
        for c in found.classes
    )
    return limited(title, headers, rows, limit, ("qualified class", "operations", "bytes"))


def _tag_rows(found: AnalysisReport) -> Iterator[Sequence[Cell]]:
    yield from ((nodes, tag) for tag, nodes in found.tags.nodes.items())


def _ranking(title: str, unit: str, modules: Sequence[RankedModule], limit: int) -> Section:
    rows = ((module.path or ROOT, module.class_name, module.amount) for module in modules[: limit or None])
    return limited(title, ("module", "class", unit), rows, 0)


def _resolution(found: AnalysisReport) -> Iterator[Section]:
    inexact = found.nodes - found.kinds.get("exact", 0)
    if found.resolution is None:
        if inexact:
            yield Section("Not exact", (f"{inexact:,} of {found.nodes:,} nodes; --show-resolution-details lists them",))
        return
    lines = []
    for detail in found.resolution:
        lines.append(f"{detail.node} ({detail.op}): {detail.kind}, {detail.confidence:.2f}: {detail.reason}")
        lines += [
            f"    {candidate.role:<11} {candidate.call or ROOT}  {candidate.tag}" for candidate in detail.candidates
        ]
    yield Section(f"Not exact: {inexact:,} of {found.nodes:,} nodes", tuple(lines))


_MODULE_HEADERS = (
    *("path", "class", "qualified_class", "tag", "depth", "calls", "own_nodes", "nodes"),
    *("own_parameters", "parameters", "parameter_bytes", *_KINDS, "lowest_confidence", "operations"),
)


def _module_rows(found: AnalysisReport, operators: int | None = None) -> Iterator[Sequence[Cell]]:
    for m in found.modules:
        yield (
            m.path,
            m.class_name,
            m.qualified_class,
            m.tag,
            m.depth,
            m.calls,
            m.own_nodes,
            m.nodes,
            m.own_parameters,
            m.parameters,
            m.parameter_bytes,
            *(m.kinds.get(kind, 0) for kind in _KINDS),
            m.lowest_confidence,
            _counts(m.operations, operators),
        )


_RESOLUTION_HEADERS = ("node", "op", "kind", "confidence", "reason", "role", "call", "tag")


def _resolution_rows(found: AnalysisReport) -> Iterator[Sequence[Cell]]:
    """One row for each candidate."""
    for d in found.resolution or ():
        for candidate in d.candidates:
            yield d.node, d.op, d.kind, d.confidence, d.reason, candidate.role, candidate.call, candidate.tag


def _counts(amounts: Mapping[str, int], most: int | None) -> str:
    shown = [f"{shortened(name, _MAX_OPERATOR_LENGTH)} {amount:,}" for name, amount in list(amounts.items())[:most]]
    further = len(amounts) - len(shown)
    return ", ".join([*shown, *([f"{further} more"] if further else [])])


def _bytes(amount: int) -> str:
    size = float(amount)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
