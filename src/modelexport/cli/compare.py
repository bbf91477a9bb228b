"""`modelexport compare`: the differences between two model files, by module and structure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from modelexport.cli.options import LimitOption
from modelexport.cli.output import FINDINGS, ROOT, Output, ReportFile, format_option, json_text
from modelexport.cli.pages import Section, as_html, as_markdown, as_text, limited
from modelexport.cli.profile_changes import changes_text
from modelexport.display import Cell, counted
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.analysis.comparison import Comparison, FieldChange, NodeAt, NodeChange


class ComparisonFormat(enum.StrEnum):
    """The formats of a comparison."""

    HUMAN = "human"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


def compare(
    *,
    before: Annotated[
        Path, typer.Argument(metavar="A", help="An ONNX file, with or without a hierarchy.", show_default=False)
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="The ONNX file to compare it with.", show_default=False)],
    contents: Annotated[
        bool, typer.Option("--weights", help="Also read and compare the values of the weights.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Run both files, and compare the time of each module instead; see the profile command."
        ),
    ] = False,
    runs: Annotated[
        int | None, typer.Option(help="For --profile, the measured runs of each file; 20 by default.")
    ] = None,
    limit: LimitOption = None,
    output_format: Annotated[
        ComparisonFormat | None,
        format_option("For people, programs or documents."),
    ] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Compare two files: the nodes added, removed and changed in each module.

    Nodes are matched by module and structure, not by name. Names and metadata are ignored.
    Exits with 0 if nothing else differs, and with 1 if something does.

    Examples:

        modelexport compare model.onnx optimized.onnx

        modelexport compare model.onnx quantized.onnx -o quantized.html

        modelexport compare old.onnx new.onnx --weights --format json

        modelexport compare old.onnx new.onnx --profile
    """
    form = report.form(output_format, ComparisonFormat)
    report.check(before, after)
    if runs is not None and not profile:
        raise InputError("--runs is only for --profile: give it too")
    if profile and contents:
        raise InputError("--weights compares the files and --profile their times: give one of them")
    if profile:
        _compare_profiles(before, after, 20 if runs is None else runs, form, limit, report, out)
        return
    from modelexport.analysis.comparison import compare_models

    with out.working(f"comparing {before} with {after}"):
        found = compare_models(before, after, contents=contents)
    report.write(render(found, form, report.rows(limit), report.width), out)
    if report.output is not None:
        out.note("\n".join(_verdict(found)[:3]))
    if not found.same:
        raise typer.Exit(FINDINGS)


def _compare_profiles(
    before: Path,
    after: Path,
    runs: int,
    form: ComparisonFormat,
    limit: int | None,
    report: ReportFile,
    out: Output,
) -> None:
    """Compare the times of two files, measured in turns. Exits with 1 if a module became slower."""
    if form not in (ComparisonFormat.HUMAN, ComparisonFormat.JSON):
        raise InputError(f"a comparison of profiles has the formats human and json, not {form.value}")
    from modelexport.profiling import compare_profiles, profile_both

    with out.running_model() as activity:
        activity.show(f"loading {before} and {after}")
        reports = profile_both(
            before, after, runs=runs, progress=lambda done, total: activity.show(f"run {done} of {total}")
        )
    found = compare_profiles(*reports, in_turns=True)
    is_json = form is ComparisonFormat.JSON
    report.write(json_text(found.as_dict()) if is_json else changes_text(found, report, limit), out)
    if found.slower:
        raise typer.Exit(FINDINGS)


def render(found: Comparison, form: ComparisonFormat, limit: int, width: int) -> str:
    """A comparison as text in one of the formats."""
    if form is ComparisonFormat.JSON:
        return json_text(msgspec.to_builtins(found))
    title = f"{Path(found.before.file).name} compared with {Path(found.after.file).name}"
    sections = [section for section in _sections(found, limit) if section.lines or section.rows]
    if form is ComparisonFormat.HUMAN:
        return as_text(title, sections, width)
    return as_markdown(title, sections) if form is ComparisonFormat.MARKDOWN else as_html(title, sections)


def _sections(found: Comparison, limit: int) -> list[Section]:
    tags = [(tag.before, tag.after, tag.tag or "(no tag)") for tag in found.tags if tag.before != tag.after]
    weights = [(w.kind, w.before, w.after, w.detail) for w in found.weights]
    return [
        Section("Result", tuple(_verdict(found))),
        limited("Files", ("file", "before", "after"), _files(found), 0),
        limited("Modules that differ", _MODULE_HEADERS, _modules(found), limit, _OPTIONAL),
        limited("Nodes that differ", _NODE_HEADERS, map(_node_row, found.changes), limit),
        limited("Tags that own more or fewer nodes", ("before", "after", "tag"), tags, limit),
        limited("Weights that differ", ("what", "before", "after", "how"), weights, limit),
        limited("Weights with different values", ("before", "after", "largest difference"), _contents(found), limit),
        _fields("Inputs and outputs", found.interface, limit),
        _fields("Operator sets", found.opsets, limit),
        _fields("Metadata", found.metadata, limit),
    ]


def _verdict(found: Comparison) -> list[str]:
    counts = found.nodes
    kept = f"{counts.same:,} the same, {counts.changed:,} changed"
    moved = f"{counts.moved:,} with a different owner, {counts.renamed:,} renamed"
    lines = [
        "the same" if found.same else f"different: {', '.join(found.differences)}",
        "same topology" if found.same_topology else "different topology",
        f"nodes: {kept}, {counts.added:,} added, {counts.removed:,} removed, {moved}",
    ]
    first = found.first_difference
    if first is not None:
        places = [f"{_node_text(at)} (node {at.position})" for at in (first.before, first.after) if at is not None]
        lines.append(f"first difference: {first.kind} in {first.module or ROOT}: {' → '.join(places)}")
    elif not found.same_topology:
        lines.append("first difference: an output of the model has a different producer")
    if not found.same_order:
        lines.append("matched nodes are in a different order")
    for side, summary in (("before", found.before), ("after", found.after)):
        if summary.hierarchy != "sidecar":
            lines.append(f"{side}: {summary.missing}; owners from: {summary.hierarchy}")
        if summary.unowned and summary.hierarchy != "none":
            lines.append(f"{side}: {counted(summary.unowned, 'node')} without a recorded owner; the owner is inferred")
    if found.contents is None:
        lines.append("values of large weights: not compared (--weights)")
    else:
        lines.append(f"values of weights: {found.contents.compared:,} compared, {found.contents.different:,} different")
    return lines


def _files(found: Comparison) -> list[tuple[Cell, ...]]:
    first, second = found.before, found.after
    rows: list[tuple[Cell, ...]] = [
        ("path", first.file, second.file),
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
    *("module", "class", "before", "after", "same", "changed", "added", "removed", "moved"),
    *("parameters before", "parameters after", "bytes before", "bytes after"),
)
_OPTIONAL = ("parameters before", "parameters after", "bytes before", "bytes after", "class", "same", "moved")
_NODE_HEADERS = ("what", "module", "before", "after", "how")


def _modules(found: Comparison) -> list[tuple[Cell, ...]]:
    return [
        (
            *(module.module or ROOT, module.class_name, module.nodes_before, module.nodes_after, module.same),
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
        how = f"now owned by {change.after.module or ROOT}"
    return change.kind, change.module or ROOT, before, after, how


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
    return limited(title, ("field", "before", "after"), rows, limit)


def _short(text: str | None) -> str:
    shown = "" if text is None else text
    return shown if len(shown) <= 120 else f"{shown[:120]}…"
