"""`modelexport analyze`: what a model file is made of, by module and by class, and what is not exact about it."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from modelexport.analysis.report import AnalysisReport, RankedModule
from modelexport.analysis.report import analyze as analyze_file
from modelexport.cli.output import message_console, printable, working
from modelexport.cli.tables import Cell, aligned, as_csv
from modelexport.textfile import check_text_target, write_text

_KINDS = ("exact", "fused", "merged", "folded", "inferred")
# How many operations, tags and classes the summary names.
_NAMED = 8
_ROOT = "(root)"


class AnalysisFormat(enum.StrEnum):
    """How an analysis is shown."""

    SUMMARY = "summary"
    DETAILED = "detailed"
    JSON = "json"
    CSV = "csv"


def analyze(
    file: Annotated[Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.")],
    output_format: Annotated[
        AnalysisFormat, typer.Option("--format", help="A page, everything, for programs, or for spreadsheets.")
    ] = AnalysisFormat.SUMMARY,
    selector: Annotated[
        str | None, typer.Option("--filter", help="Only the nodes that a selector picks (docs/selectors.md).")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=0, help="Modules down to this many levels below the root.")] = None,
    details: Annotated[
        bool,
        typer.Option("--show-resolution-details", help="Every node whose owner is not exact: candidates and reason."),
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace that file if it exists.")] = False,
) -> None:
    """Show what a model file is made of: nodes, operations and parameters by module and by class.

    It reads files of modelexport, with or without their sidecar, and files of torch's own exporters, and says what it
    found. With --show-resolution-details, CSV lists nodes instead of modules.

    Examples:

        modelexport analyze model.onnx

        modelexport analyze model.onnx --format detailed --depth 2

        modelexport analyze model.onnx --filter 'class:LayerNorm and not encoder.layer.0' --format json

        modelexport analyze model.onnx --format csv -o modules.csv --force

        modelexport analyze model.onnx --show-resolution-details
    """
    target = check_text_target(output, force=force, taken=[file]) if output is not None else None
    with working(f"reading {file}"):
        report = analyze_file(file, selector=selector, depth=depth, resolution=details)
    text = _as_text(report, output_format)
    if target is None:
        sys.stdout.write(text)
        return
    write_text(target, text)
    message_console().print(printable(f"wrote {target}"), markup=False)


def _as_text(report: AnalysisReport, output_format: AnalysisFormat) -> str:
    if output_format is AnalysisFormat.JSON:
        return json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=True) + "\n"
    if output_format is AnalysisFormat.CSV:
        if report.resolution is not None:
            return as_csv(_RESOLUTION_HEADERS, _resolution_rows(report))
        return as_csv(_MODULE_HEADERS, _module_rows(report))
    lines = [*_overview(report), *(_everything(report) if output_format is AnalysisFormat.DETAILED else _top(report))]
    if report.resolution is not None:
        lines += ["", *_resolution(report)]
    elif report.kinds.get("exact", 0) < report.nodes:
        lines += ["", "what is not exact, and why: --show-resolution-details"]
    return "".join(f"{line}\n" for line in lines)


def _overview(report: AnalysisReport) -> Iterator[str]:
    # Names in lines of our own are made harmless here, those in tables where the table is made.
    yield printable(report.file)
    yield printable(f"hierarchy from: {report.origin} (strategy {report.strategy}, exporter {report.exporter})")
    for words in report.missing:
        yield printable(f"  note: {words}")
    if report.selector is not None:
        yield printable(f"selected by {report.selector}: {report.nodes:,} of {report.all_nodes:,} nodes")
    kinds = ", ".join(f"{report.kinds[kind]:,} {kind}" for kind in _KINDS if report.kinds.get(kind))
    yield f"nodes: {report.nodes:,} ({kinds}), {report.coverage:.1%} with an owner"
    yield f"confidence: {report.mean_confidence:.3f} in the mean"
    yield f"modules: {len(report.modules):,} shown, at most {report.deepest} levels deep; {report.calls:,} calls"
    yield f"parameters: {report.parameters:,} ({_bytes(report.parameter_bytes)})"
    weights = report.weights
    where = f", {weights.external:,} of them in files of their own" if weights.external else ""
    yield f"weights in the file: {weights.tensors:,} tensors, {_bytes(weights.bytes)}{where}"
    tags = report.tags
    repeated = f"{tags.of_repeated_calls:,} of repeated calls"
    yield f"tags: {tags.distinct:,} different, at most {tags.deepest} segments, {repeated}"
    yield f"operations: {_counts(report.operations, _NAMED)}"


def _top(report: AnalysisReport) -> Iterator[str]:
    yield from _ranking("largest modules, by nodes of their own", "nodes", report.largest)
    yield from _ranking("heaviest modules, by parameters of their own", "parameters", report.heaviest)
    yield from _ranking("called most often", "calls", report.most_called)
    yield from _ranking("classes with most modules", "modules", report.most_repeated)
    yield ""
    yield "classes with most nodes"
    yield from _class_table(report, _NAMED)
    yield ""
    yield "tags with most nodes"
    yield from _indented(aligned(("tag", "nodes"), list(report.tags.nodes.items())[:_NAMED]))


def _everything(report: AnalysisReport) -> Iterator[str]:
    yield ""
    yield "by module"
    amounts = ("depth", "calls", "own", "nodes", "parameters", "bytes", *_KINDS, "lowest")
    headers = ("module", "class", *amounts, "operations")
    yield from _indented(
        aligned(
            headers,
            [
                (
                    m.path or _ROOT,
                    m.class_name,
                    m.depth,
                    m.calls,
                    m.own_nodes,
                    m.nodes,
                    m.parameters,
                    m.parameter_bytes,
                    *(m.kinds.get(kind, 0) for kind in _KINDS),
                    m.lowest_confidence,
                    _counts(m.operations, _NAMED),
                )
                for m in report.modules
            ],
        )
    )
    yield ""
    yield "by class"
    yield from _class_table(report, None)
    yield ""
    yield "by tag"
    yield from _indented(aligned(("tag", "nodes"), list(report.tags.nodes.items())))


def _class_table(report: AnalysisReport, most: int | None) -> Iterator[str]:
    headers = ("class", "modules", "calls", "nodes", "parameters", "bytes", "operations")
    rows = [
        (c.qualified_class, c.modules, c.calls, c.nodes, c.parameters, c.parameter_bytes, _counts(c.operations, 5))
        for c in report.classes[:most]
    ]
    yield from _indented(aligned(headers, rows))


def _ranking(title: str, unit: str, modules: Sequence[RankedModule]) -> Iterator[str]:
    if modules:
        yield ""
        yield title
        rows = [(module.path or _ROOT, module.class_name, module.amount) for module in modules]
        yield from _indented(aligned(("module", "class", unit), rows))


def _resolution(report: AnalysisReport) -> Iterator[str]:
    details = report.resolution or ()
    yield f"nodes that are not exact: {len(details):,} of {report.nodes:,}"
    for detail in details:
        yield printable(f"{detail.node} ({detail.op}): {detail.kind}, {detail.confidence:.2f}: {detail.reason}")
        for candidate in detail.candidates:
            yield printable(f"    {candidate.role:<11} {candidate.call or _ROOT}  {candidate.tag}")


_MODULE_HEADERS = (
    "path",
    "class",
    "qualified_class",
    "tag",
    "depth",
    "calls",
    "own_nodes",
    "nodes",
    "own_parameters",
    "parameters",
    "parameter_bytes",
    *_KINDS,
    "lowest_confidence",
    "operations",
)


def _module_rows(report: AnalysisReport) -> Iterator[Sequence[Cell]]:
    for m in report.modules:
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
            _counts(m.operations, None),
        )


_RESOLUTION_HEADERS = ("node", "op", "kind", "confidence", "reason", "role", "call", "tag")


def _resolution_rows(report: AnalysisReport) -> Iterator[Sequence[Cell]]:
    """One row for each candidate."""
    for d in report.resolution or ():
        for candidate in d.candidates:
            yield d.node, d.op, d.kind, d.confidence, d.reason, candidate.role, candidate.call, candidate.tag


def _counts(amounts: Mapping[str, int], most: int | None) -> str:
    shown = [f"{printable(name)} {amount:,}" for name, amount in list(amounts.items())[:most]]
    further = len(amounts) - len(shown)
    return ", ".join([*shown, *([f"{further} more"] if further else [])])


def _bytes(amount: int) -> str:
    size = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return ""


def _indented(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines)
