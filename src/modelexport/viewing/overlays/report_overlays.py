"""Overlays from reports: a profile, a verification, a comparison with another file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from modelexport.analysis import CallVerification, Difference, Verdict, read_verification
from modelexport.analysis.comparison import Comparison, ModuleChange, NodeChange, compare_models
from modelexport.display import counted
from modelexport.errors import InputError
from modelexport.hierarchy import CallId, parent_path
from modelexport.profiling import CallProfile, ProfileReport, middle_runs, read_profile
from modelexport.storage import ModelFile
from modelexport.viewing.hierarchy_tables import with_callees
from modelexport.viewing.overlays.file_overlays import unions
from modelexport.viewing.page_data import Calls, Nodes, Overlay, Values, rounded

_VERDICTS = tuple(verdict.value.replace("_", " ") for verdict in reversed(Verdict))
_CHANGES = ("unchanged", "moved", "removed", "added", "changed")
_MOST_LINES = 12
_LARGEST = 1e300


def profile_overlays(
    path: str | Path, file: ModelFile, calls: Calls, nodes: Nodes, strings: Sequence[str], *, private: bool
) -> list[Overlay]:
    """Time, memory and execution provider of each call, from a report of ``modelexport profile``.

    Raises:
        InputError: The report cannot be read, or is of another graph.
        FileFormatError: It is not a profile.
    """
    report = read_profile(path)
    _check_graph(path, "profile", report.file, report.graph_hash, file)
    found = {call.id: call for call in report.calls}
    rows = [found.get(strings[name]) for name in calls.id]
    details = {
        number: [*_usage_lines(row), *([] if private or not row.source else [f"most expensive kernel: {row.source}"])]
        for number, row in enumerate(rows)
        if row is not None and (row.nodes or row.fused_into)
    }
    whole = f"{report.runtime}, {counted(report.settings.runs, 'run')}"
    session = f"the session takes {report.session.median * 1e3:.3f} ms (median)"
    notes = (f"{session}, {report.overhead_share:.1%} of it outside of kernels", *report.notes)
    overlays = [
        Overlay(
            id="time",
            title="Time",
            description=f"Seconds of the kernels of a call in one run, the mean of the middle half of runs ({whole}).",
            scale="sequential",
            unit="seconds",
            calls=[None if row is None else rounded(row.own.mean) for row in rows],
            totals=[None if row is None else rounded(row.total.mean) for row in rows],
            nodes=_node_times(report, nodes, strings),
            details=details,
            notes=notes,
            sizes=True,
        )
    ]
    memory = [0 if row is None else sum(m or 0 for m in msgspec.structs.asdict(row.memory).values()) for row in rows]
    if any(memory):
        overlays.append(
            Overlay(
                id="memory",
                title="Memory",
                description=f"Bytes of the inputs, weights, outputs and temporary buffers of its kernels ({whole}).",
                scale="sequential",
                unit="bytes",
                calls=[*memory],
                totals=[*with_callees(memory, calls.parent)],
                details={n: _memory_lines(row) for n, row in enumerate(rows) if row is not None and row.nodes},
                sizes=True,
            )
        )
    overlays += _provider_overlay(report, rows, whole)
    return overlays


def _node_times(report: ProfileReport, nodes: Nodes, strings: Sequence[str]) -> Values | None:
    """The time of each kernel at the node that computes its output; None if no kernel computes that of a node."""
    middle = middle_runs(report.session.seconds)
    numbers = {strings[name]: number for number, name in enumerate(nodes.id)}
    found: Values = [None] * len(nodes.id)
    for kernel in report.kernels:
        number = numbers.get(kernel.sources[-1] if kernel.sources else kernel.node)
        if number is not None:
            mean = sum(kernel.seconds[run] for run in middle) / len(middle)
            found[number] = rounded((found[number] or 0.0) + mean)
    return found if any(found) else None


def _provider_overlay(report: ProfileReport, rows: Sequence[CallProfile | None], whole: str) -> list[Overlay]:
    combined = [" and ".join(sorted(row.providers)) if row is not None else "" for row in rows]
    names = tuple(name for name, _ in Counter(name for name in combined if name).most_common())
    if not names:
        return []
    return [
        Overlay(
            id="provider",
            title="Execution provider",
            description=f"The execution providers that run the kernels of a call ({whole}).",
            scale="category",
            unit="",
            categories=names,
            calls=[names.index(name) if name else None for name in combined],
            notes=tuple(finding.message for finding in report.findings[:_MOST_LINES]),
        )
    ]


def _usage_lines(row: CallProfile) -> list[str]:
    lines = [
        f"own: {row.own.median * 1e3:.3f} ms (p90 {row.own.p90 * 1e3:.3f} ms), {row.share:.1%} of the session",
        f"with the calls inside: {row.total.median * 1e3:.3f} ms, {row.total_share:.1%} of the session",
        counted(row.nodes, "kernel"),
    ]
    for calls, text in ((row.fused_with, "also do work of"), (row.fused_into, "its work is done in")):
        if calls:
            lines.append(f"{text} {', '.join(call or '(root)' for call in calls[:_MOST_LINES])}")
    return lines


def _memory_lines(row: CallProfile) -> list[str]:
    return [f"{name}: {size:,} bytes" for name, size in msgspec.structs.asdict(row.memory).items() if size is not None]


def verification_overlays(path: str | Path, file: ModelFile, calls: Calls, strings: Sequence[str]) -> list[Overlay]:
    """Verdicts and errors of each call, from a report of ``modelexport verify``.

    Raises:
        InputError: The report cannot be read, or is of another graph.
        FileFormatError: It is not a verification.
    """
    report = read_verification(path)
    _check_graph(path, "verification", report.file, report.graph_hash, file)
    found = {record.call: record for record in report.calls}
    rows = [found.get(strings[name]) for name in calls.id]
    notes = (report.summary(), *([report.whole_run_error] if report.whole_run_error else []))
    known = [(number, row) for number, row in enumerate(rows) if row is not None]
    order = list(reversed(Verdict))
    verdicts: Values = [None if row is None else order.index(row.verdict) for row in rows]
    overlays = [
        Overlay(
            id="verdict",
            title="Verdict",
            description="Whether the outputs of a call equal PyTorch's, and if not, whether the call is the cause.",
            scale="category",
            unit="",
            categories=_VERDICTS,
            calls=verdicts,
            details={number: list(_verdict_lines(row)) for number, row in known},
            notes=notes,
        )
    ]
    for kind, title, description in (
        ("introduced", "Error introduced", "The largest error on PyTorch's inputs, as a multiple of the tolerance."),
        ("inherited", "Error inherited", "The effect of the errors of its inputs, as a multiple of the tolerance."),
    ):
        values = [_excess(None if row is None else getattr(row, kind)) for row in rows]
        if any(value is not None for value in values):
            overlays.append(
                Overlay(
                    id="error" if kind == "introduced" else kind,
                    title=title,
                    description=f"{description} Above 1 is out of tolerance.",
                    scale="sequential",
                    unit="ratio",
                    calls=values,
                    details={number: _error_lines(getattr(row, kind)) for number, row in known if getattr(row, kind)},
                )
            )
    return overlays


def _excess(difference: Difference | None) -> float | None:
    """The excess over the tolerance; an infinite one, which JSON does not have, as the largest number."""
    return None if difference is None else rounded(min(difference.excess, _LARGEST))


def _error_lines(found: Difference) -> list[str]:
    ratio = "" if found.sqnr is None else f", {found.sqnr:.1f} dB"
    outside = f"; {found.outside:,} of {counted(found.elements, 'element')} out of tolerance" if found.outside else ""
    return [f"largest error {found.absolute:.3g}, {found.excess:.3g} times the tolerance{ratio}{outside}"]


def _verdict_lines(row: CallVerification) -> Iterable[str]:
    yield row.verdict.value.replace("_", " ")
    if row.judged is not None:
        yield from _error_lines(row.judged)
    yield from (text for text in (row.explanation, *row.notes) if text)
    if row.source is not None:
        yield f"introduced in {row.source or '(root)'}"


def _check_graph(path: str | Path, what: str, other: str, graph_hash: str, file: ModelFile) -> None:
    if not graph_hash:
        raise InputError(f"{path} does not say which graph it is a {what} of: write it again with this release")
    if graph_hash != file.graph_hash:
        name = Path(other).name if other else "another graph"
        raise InputError(
            f"{path} is a {what} of {name} (graph {graph_hash[:8]}), not of {file.path.name} (graph "
            f"{file.graph_hash[:8]}): {'profile' if what == 'profile' else 'verify'} this file, or view that one"
        )


def comparison_overlay(
    other: str | Path, file: ModelFile, calls: Calls, nodes: Nodes, strings: Sequence[str]
) -> Overlay:
    """What changed from another file to this one, by call and node.

    Raises:
        InputError: The other file does not exist.
        FileFormatError: It is not an ONNX model.
    """
    found = compare_models(other, file)
    numbers = {strings[name]: number for number, name in enumerate(calls.id)}
    changes: list[list[NodeChange]] = [[] for _ in calls.id]
    for change in found.changes:
        at = change.after or change.before
        changes[_nearest(change.module if at is None else at.module, numbers)].append(change)
    kinds: list[set[str]] = [{change.kind for change in own} for own in changes]
    details = {number: list(_change_lines(own)) for number, own in enumerate(changes) if own}
    for row in found.modules:
        if row.differs:
            number = _nearest(row.module, numbers)
            kinds[number] |= {"changed"} if not kinds[number] else set()
            details[number] = [*_weight_lines(row), *details.get(number, [])]
    by_node = {change.after.id: change.kind for change in found.changes if change.after is not None}
    return Overlay(
        id="changes",
        title=f"Changes from {Path(found.before.file).name}",
        description="What differs from the other file: nodes that were added, removed, changed, or moved to this call.",
        scale="category",
        unit="",
        categories=_CHANGES,
        calls=[_change(own) for own in kinds],
        totals=[_change(inside) for inside in unions(calls, kinds)],
        nodes=[_CHANGES.index(by_node.get(strings[name], _CHANGES[0])) for name in nodes.id],
        details=details,
        notes=tuple(_comparison_notes(found)),
    )


def _nearest(call: str, numbers: Mapping[str, int]) -> int:
    """The number of a call, or that of the nearest module around one that this file does not have."""
    path: str | None = call if call in numbers else CallId.parse(call).path
    while path is not None and path not in numbers:
        path = parent_path(path)
    return numbers[path or ""]


def _change(kinds: set[str]) -> float:
    return _CHANGES.index(next(iter(kinds)) if len(kinds) == 1 else "changed" if kinds else _CHANGES[0])


def _change_lines(changes: Sequence[NodeChange]) -> Iterable[str]:
    for change in changes[:_MOST_LINES]:
        at = change.after or change.before
        if at is not None:
            yield f"{change.kind}: {at.operation} {at.id}{f' ({change.detail})' if change.detail else ''}"
    if len(changes) > _MOST_LINES:
        yield f"and {counted(len(changes) - _MOST_LINES, 'more change')}"


def _weight_lines(row: ModuleChange) -> Iterable[str]:
    if row.nodes_before != row.nodes_after:
        yield f"nodes: {row.nodes_before:,} → {row.nodes_after:,}"
    if row.parameters_before != row.parameters_after:
        yield f"elements of weights: {row.parameters_before:,} → {row.parameters_after:,}"
    if row.bytes_before != row.bytes_after:
        yield f"bytes of weights: {row.bytes_before:,} → {row.bytes_after:,}"


def _comparison_notes(found: Comparison) -> Iterable[str]:
    counts: Mapping[str, int] = msgspec.structs.asdict(found.nodes)
    yield ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number)
    yield "the same but for names and metadata" if found.same else f"different in {', '.join(found.differences)}"
