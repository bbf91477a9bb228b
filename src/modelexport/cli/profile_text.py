"""A profile as text and as CSV, for the command `profile`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from modelexport.cli.flame_graph import flame_graph
from modelexport.cli.output import ROOT
from modelexport.cli.pages import Section, as_csv, as_text
from modelexport.display import Cell, counted

if TYPE_CHECKING:
    from modelexport.profiling import ProfileReport, ProfileRow, Timing

_MILLISECONDS = 1e3
_LONG_RUN = 0.1
_THOUSAND = 1000


_CSV_HEADERS = (
    *("name", "class", "calls", "own_seconds", "own_p90", "share", "total_seconds", "total_p90", "total_share"),
    *("kernels", "activation_bytes", "parameter_bytes", "output_bytes", "temporary_bytes"),
    *("providers", "fused_with", "fused_into", "source"),
)


@dataclasses.dataclass(frozen=True)
class ProfileView:
    """What of a profile is shown.

    Attributes:
        by: What a row is.
        depth: The deepest level of modules with a row of their own; None for all.
        sort: What rows are sorted by.
        source: Whether to show source lines.
        limit: The number of rows to show; 0 for all.
        width: The width of the terminal.
    """

    by: str
    depth: int | None
    sort: str
    source: bool
    limit: int
    width: int


def profile_text(found: ProfileReport, view: ProfileView) -> str:
    """The flame graph of a profile and its rows."""
    rows = found.rows(view.by, depth=view.depth, sort=view.sort)
    unit, scale = time_unit(found.session.median)
    headers = _headers(view.by, unit)
    shown = [_cells(row, scale, view.source) for row in rows[: view.limit or None]]
    # What rows are sorted by is always shown.
    kept = {"total": (f"total {unit}", "total %"), "memory": ("outputs", "weights")}.get(view.sort, ("share %",))
    optional = (
        *("fused into", "temporary", "total p90", "provider", "weights", "outputs", "calls", "kernels", "fused with"),
        *("p90", headers[1], f"total {unit}", "total %", "share %"),
    )
    table = Section(
        "",
        (),
        headers,
        (*shown, _overhead(found, scale, len(headers))),
        optional=tuple(name for name in optional if name not in kept),
    )
    left = len(rows) - len(shown)
    more = [f"… and {counted(left, 'more row')} (--limit 0 shows all)"] if left else []
    if view.source and not any(row.source for row in rows):
        more.append("note: the file has no source lines: not recorded by its exporter, or exported with --private")
    body = [table, Section("", (*more, "", *_tail(found, view.limit)))]
    head = as_text("", [Section("", (*_head(found), ""))], view.width)
    return f"{head}{flame_graph(found, view.width)}\n{as_text('', body, view.width)}"


def time_unit(session: float) -> tuple[str, float]:
    """The unit of times, and how many of it a second has: short runs in microseconds, which onnxruntime measures."""
    return ("ms", _MILLISECONDS) if session >= _LONG_RUN else ("\N{MICRO SIGN}s", 1e6)


def profile_csv(found: ProfileReport, view: ProfileView) -> str:
    """All rows of a profile as CSV, in seconds and bytes."""
    return as_csv(_CSV_HEADERS, [_csv_row(row) for row in found.rows(view.by, depth=view.depth, sort=view.sort)])


def _headers(by: str, unit: str) -> tuple[str, ...]:
    return (
        *(by, "class name" if by == "class" else "class", "calls"),
        *(f"own {unit}", "p90", "share %", f"total {unit}", "total p90", "total %"),
        *("kernels", "outputs", "weights", "temporary", "provider", "fused with", "fused into", "source"),
    )


def _head(found: ProfileReport) -> list[str]:
    settings = found.settings
    median, p90 = (f"{seconds * 1e3:.3g}" for seconds in (found.session.median, found.session.p90))
    times = f"{median} ms a run (median of {counted(settings.runs, 'run')}, p90 {p90})"
    inputs = ", ".join(f"{name} {shape}" for name, shape in settings.inputs.items())
    level = f", optimization {settings.optimization}" if settings.optimization else ""
    lines = [f"{found.file}", f"{times}, {found.runtime}{level}"]
    if inputs:
        lines.append(f"inputs: {inputs}{' (synthesized)' if settings.synthesized else ''}")
    return lines


def _tail(found: ProfileReport, limit: int) -> list[str]:
    added = f"{1 - found.unexplained:.1%}"
    lines = [
        f"all calls and the overhead add up to the session in each run; their medians add up to {added} of its median"
    ]
    if found.selected is not None:
        lines.append(f"selected: {counted(len(found.selected), 'call')} of {len(found.calls):,}")
    lines += [f"note: {note}" for note in found.notes]
    shown = found.findings[: limit or None]
    lines += [f"{finding.severity.value}: {finding.message}" for finding in shown]
    if len(shown) < len(found.findings):
        lines.append(f"… and {counted(len(found.findings) - len(shown), 'more finding')} (--limit 0 shows all)")
    if shown:
        lines.append(f"next: {shown[0].fix}")
    return lines


def _cells(row: ProfileRow, scale: float, source: bool) -> tuple[Cell, ...]:
    memory = row.memory
    return (
        *(row.name, None if row.class_name == row.name else row.class_name, row.calls),
        *(*_times(row.own, scale), row.share * 100, *_times(row.total, scale), row.total_share * 100),
        *(row.nodes, _size(memory.output), _size(memory.parameter), _size(memory.temporary)),
        ", ".join(name.removesuffix("ExecutionProvider") for name in row.providers),
        *(_listed(row.fused_with), _listed(row.fused_into), _short_path(row.source) if source else None),
    )


def _overhead(found: ProfileReport, scale: float, columns: int) -> tuple[Cell, ...]:
    from modelexport.profiling import OVERHEAD_NAME

    cells = (OVERHEAD_NAME, None, None, *_times(found.overhead, scale), found.overhead_share * 100)
    return (*cells, *[None] * (columns - len(cells)))


def _times(timing: Timing, scale: float) -> tuple[Cell, Cell]:
    return shown_time(timing.median, scale), shown_time(timing.p90, scale)


def shown_time(seconds: float, scale: float) -> Cell:
    """A time in milliseconds, or in whole microseconds."""
    return seconds * scale if scale == _MILLISECONDS else round(seconds * scale)


def _size(amount: float | None) -> str | None:
    if amount is None:
        return None
    for unit in ("B", "kB", "MB"):
        if amount < _THOUSAND:
            return f"{amount:.3g} {unit}"
        amount /= _THOUSAND
    return f"{amount:.3g} GB"


def _listed(calls: tuple[str, ...]) -> str | None:
    if not calls:
        return None
    return f"{calls[0] or ROOT}{f' and {len(calls) - 1} more' if len(calls) > 1 else ''}"


def _short_path(source: str) -> str:
    """A source line with the last folder only, which a terminal has room for; JSON and CSV have all of it."""
    return "/".join(source.split("/")[-2:])


def _csv_row(row: ProfileRow) -> tuple[Cell, ...]:
    memory = row.memory
    return (
        *(row.name, row.class_name, row.calls, row.own.median, row.own.p90, row.share),
        *(row.total.median, row.total.p90, row.total_share, row.nodes),
        *(memory.activation, memory.parameter, memory.output, memory.temporary),
        *(" ".join(row.providers), " ".join(row.fused_with), " ".join(row.fused_into), row.source),
    )
