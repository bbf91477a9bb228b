"""`modelexport compare`: what differs between two model files, by module and structure."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from modelexport.analysis.comparison import Comparison, FieldChange, NodeAt, NodeChange, compare_models
from modelexport.cli.output import message_console, printable
from modelexport.cli.pages import Section, as_html, as_markdown, as_text
from modelexport.cli.tables import Cell
from modelexport.errors import InputError
from modelexport.textfile import check_text_target, write_text

_FINDINGS = 1
# How many rows of a table a report file shows; JSON has all.
_REPORT_ROWS = 1000
_SUFFIXES = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}
_ROOT = "(root)"


class ComparisonFormat(enum.StrEnum):
    """How a comparison is printed."""

    HUMAN = "human"
    JSON = "json"
    MARKDOWN = "markdown"


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="An ONNX file, with or without a hierarchy.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The ONNX file to compare it with.")],
    output_format: Annotated[
        ComparisonFormat, typer.Option("--format", help="For terminals, for programs, or for documents.")
    ] = ComparisonFormat.HUMAN,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write a report to keep: a file .html, .md or .json.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the report if it exists.")] = False,
    contents: Annotated[
        bool, typer.Option("--weights", help="Also read and compare the contents of the weights.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="How many rows of each table to print; JSON has all.")] = 20,
) -> None:
    """Compare two models: the same topology or not, and what was added, removed and changed in each module.

    Nodes are matched by module and structure, not by name. Names and who wrote a file make no difference: exit code 0
    if nothing else differs, 1 if something does.

    Examples:

        modelexport compare model.onnx optimized.onnx

        modelexport compare model.onnx quantized.onnx --report quantized.html

        modelexport compare old.onnx new.onnx --weights --format json
    """
    target, form = None, ""
    if report is not None:
        form = _SUFFIXES.get(report.suffix.lower(), "")
        if not form:
            raise InputError(f"Cannot write {report}: its ending says no form. Use one of {', '.join(_SUFFIXES)}.")
        target = check_text_target(report, force=force, taken=[before, after])
    found = compare_models(before, after, contents=contents)
    sys.stdout.write(render(found, output_format.value, limit))
    if target is not None:
        write_text(target, render(found, form, _REPORT_ROWS))
        message_console().print(printable(f"wrote {target}"), markup=False)
    if not found.same:
        raise typer.Exit(_FINDINGS)


def render(found: Comparison, form: str, limit: int) -> str:
    """A comparison as text in one of the forms: human, json, markdown or html."""
    if form == "json":
        return json.dumps(msgspec.to_builtins(found), indent=2, ensure_ascii=True) + "\n"
    title = f"{Path(found.before.file).name} compared with {Path(found.after.file).name}"
    sections = [section for section in _sections(found, limit) if section.lines or section.rows]
    return {"markdown": as_markdown, "html": as_html}.get(form, as_text)(title, sections)


def _sections(found: Comparison, limit: int) -> list[Section]:
    tags = [(tag.tag or "(no tag)", tag.before, tag.after) for tag in found.tags if tag.before != tag.after]
    weights = [(w.kind, w.before, w.after, w.detail) for w in found.weights]
    return [
        Section("Result", tuple(_verdict(found))),
        _table("Files", ("", "before", "after"), _files(found), len(found.before.weights.bytes_by_type) + 100),
        _table("Modules that differ", _MODULE_HEADERS, _modules(found), limit),
        _table("Nodes that differ", ("what", "module", "before", "after", "how"), map(_node_row, found.changes), limit),
        _table("Tags that own more or fewer nodes", ("tag", "before", "after"), tags, limit),
        _table("Weights that differ", ("what", "before", "after", "how"), weights, limit),
        _table("Contents of weights that differ", ("before", "after", "largest difference"), _contents(found), limit),
        _fields("Inputs and outputs", found.interface, limit),
        _fields("Operator sets", found.opsets, limit),
        _fields("Metadata", found.metadata, limit),
    ]


def _table(title: str, headers: tuple[str, ...], rows: Iterable[Sequence[Cell]], limit: int) -> Section:
    everything = [tuple(row) for row in rows]
    shown = tuple(everything[:limit])
    # A table that may show nothing still says how much there is.
    lines = (f"{len(everything):,} in all",) if everything and not shown else ()
    return Section(title, lines, headers, shown, len(everything) - len(shown) if shown else 0)


def _verdict(found: Comparison) -> list[str]:
    counts = found.nodes
    kept = f"{counts.same:,} the same, {counts.changed:,} changed"
    moved = f"{counts.moved:,} with another owner, {counts.renamed:,} under another name"
    lines = [
        "the same" if found.same else f"different: {', '.join(found.differences)}",
        "same topology" if found.same_topology else "another topology",
        f"nodes: {kept}, {counts.added:,} added, {counts.removed:,} removed, {moved}",
    ]
    first = found.first_difference
    if first is not None:
        places = [f"{_node_text(at)} (node {at.position})" for at in (first.before, first.after) if at is not None]
        lines.append(f"first difference: {first.kind} in {first.module or _ROOT}: {' → '.join(places)}")
    elif not found.same_topology:
        lines.append("first difference: an output of the model comes from another node")
    if not found.same_order:
        lines.append("the nodes that both have stand in another order")
    for side, summary in (("before", found.before), ("after", found.after)):
        if summary.hierarchy != "sidecar":
            lines.append(f"{side}: {summary.missing}; owners from: {summary.hierarchy}")
        if summary.unowned and summary.hierarchy != "none":
            lines.append(f"{side}: {summary.unowned:,} nodes name no owner and count with the modules they lie between")
    if found.contents is None:
        lines.append("contents of large weights: not compared (--weights)")
    else:
        lines.append(
            f"contents of weights: {found.contents.compared:,} compared, {found.contents.different:,} different"
        )
    return lines


def _files(found: Comparison) -> list[tuple[Cell, ...]]:
    first, second = found.before, found.after
    rows: list[tuple[Cell, ...]] = [
        ("file", first.file, second.file),
        ("hierarchy", first.hierarchy, second.hierarchy),
        ("nodes", f"{first.nodes:,}", f"{second.nodes:,}"),
        ("calls with nodes", f"{first.calls:,}", f"{second.calls:,}"),
        ("weights", f"{first.weights.tensors:,}", f"{second.weights.tensors:,}"),
        ("parameters", f"{first.weights.elements:,}", f"{second.weights.elements:,}"),
        ("bytes", f"{first.weights.bytes:,}", f"{second.weights.bytes:,}"),
    ]
    types = dict.fromkeys((*first.weights.bytes_by_type, *second.weights.bytes_by_type))
    for name in types:
        sizes = (first.weights.bytes_by_type.get(name, 0), second.weights.bytes_by_type.get(name, 0))
        rows.append((f"bytes of {name}", *(f"{size:,}" for size in sizes)))
    return rows


_MODULE_HEADERS = (
    *("module", "class", "nodes before", "nodes after", "same", "changed", "added", "removed", "moved"),
    *("parameters before", "parameters after", "bytes before", "bytes after"),
)


def _modules(found: Comparison) -> list[tuple[Cell, ...]]:
    return [
        (
            *(module.module or _ROOT, module.class_name, module.nodes_before, module.nodes_after, module.same),
            *(module.changed, module.added, module.removed, module.moved),
            *(module.parameters_before, module.parameters_after, module.bytes_before, module.bytes_after),
        )
        for module in found.modules
        if module.differs
    ]


def _node_row(change: NodeChange) -> tuple[Cell, ...]:
    before = _node_text(change.before) if change.before is not None else ""
    after = _node_text(change.after) if change.after is not None else ""
    how = change.detail
    if change.kind == "moved" and change.after is not None:
        how = f"now owned by {change.after.module or _ROOT}"
    return change.kind, change.module or _ROOT, before, after, how


def _node_text(at: NodeAt) -> str:
    return f"{at.operation} {at.id}"


def _contents(found: Comparison) -> list[tuple[Cell, ...]]:
    if found.contents is None:
        return []
    return [
        (w.before, w.after, "" if w.largest_difference is None else f"{w.largest_difference:.3g}")
        for w in found.contents.weights
    ]


def _fields(title: str, changes: Sequence[FieldChange], limit: int) -> Section:
    rows = [(c.field, _short(c.before), _short(c.after)) for c in changes]
    return _table(title, ("field", "before", "after"), rows, limit)


def _short(text: str | None) -> str:
    shown = "" if text is None else text
    return shown if len(shown) <= 120 else f"{shown[:120]}…"
