"""A profile as text and as CSV, for the command `profile`."""

from __future__ import annotations

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


def profile_text(found: ProfileReport, rows: list[ProfileRow], by: str, source: bool, limit: int, width: int) -> str:
    """The flame graph of a profile and its rows.

    Args:
        found: The profile.
        rows: Its rows.
        by: What a row is.
        source: Whether to show source lines.
        limit: The number of rows to show; 0 for all.
        width: The width of the terminal.
    """
    # Short runs in whole microseconds, which is what onnxruntime measures.
    unit, scale = ("ms", 1e3) if found.session.median >= _LONG_RUN else ("\N{MICRO SIGN}s", 1e6)
    headers = _headers(by, unit)
    shown = [_cells(row, scale, source) for row in rows[: limit or None]]
    optional = (
        *("fused into", "temporary", "total p90", "provider", "weights", "outputs", "calls", "kernels", "fused with"),
        *("p90", headers[1], f"total {unit}", "total %"),
    )
    table = Section("", (), headers, (*shown, _overhead(found, scale, len(headers))), optional=optional)
    left = len(rows) - len(shown)
    more = [f"… and {left:,} more rows (--limit 0 shows all)"] if left else []
    if source and not any(row.source for row in rows):
        more.append("note: the file has no source lines: not recorded by its exporter, or exported with --private")
    body = [table, Section("", (*more, "", *_tail(found, limit)))]
    head = as_text("", [Section("", (*_head(found), ""))], width)
    return f"{head}{flame_graph(found, width)}\n{as_text('', body, width)}"


def profile_csv(rows: list[ProfileRow]) -> str:
    """The rows of a profile as CSV, in seconds and bytes."""
    return as_csv(_CSV_HEADERS, [_csv_row(row) for row in rows])


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
        lines.append(f"… and {len(found.findings) - len(shown):,} more findings (--limit 0 shows all)")
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
    median, p90 = timing.median * scale, timing.p90 * scale
    return (median, p90) if scale == _MILLISECONDS else (round(median), round(p90))


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
    """A source line without the folder that packages are installed in."""
    return source.rpartition("site-packages/")[2]


def _csv_row(row: ProfileRow) -> tuple[Cell, ...]:
    memory = row.memory
    return (
        *(row.name, row.class_name, row.calls, row.own.median, row.own.p90, row.share),
        *(row.total.median, row.total.p90, row.total_share, row.nodes),
        *(memory.activation, memory.parameter, memory.output, memory.temporary),
        *(" ".join(row.providers), " ".join(row.fused_with), " ".join(row.fused_into), row.source),
    )
