"""The comparison of two profiles as text, for the commands `profile` and `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelexport.cli.output import ROOT, ReportFile
from modelexport.cli.pages import Section, as_text, limited
from modelexport.cli.profile_text import shown_time, time_unit
from modelexport.display import Cell, counted

if TYPE_CHECKING:
    from modelexport.profiling import CallChange, ProfileComparison

_HEADERS = ("verdict", "call", "class", "before {}", "after {}", "ratio", "own before", "own after")
_OPTIONAL = ("own after", "own before", "class")


def changes_text(found: ProfileComparison, report: ReportFile, limit: int | None) -> str:
    """The calls that changed, those that changed the session most first."""
    changed = [call for call in found.calls if call.verdict != "same"]
    session = f"{found.session_before * 1e3:.3g} ms → {found.session_after * 1e3:.3g} ms a run"
    same = len(found.calls) - len(changed)
    lines = (
        f"{found.before}",
        f"{found.after}",
        f"session: {session}, {found.session} ({found.ratio:.2f} times)",
        *([] if found.common_factor == 1 else [f"common factor of all calls: {found.common_factor:.2f}"]),
        f"{len(found.slower):,} slower, {len(found.faster):,} faster, {counted(same, 'call')} within noise",
        "",
    )
    unit, scale = time_unit(max(found.session_before, found.session_after))
    headers = tuple(header.format(unit) for header in _HEADERS)
    rows = (_cells(change, scale) for change in changed)
    table = limited("", headers, rows, report.rows(limit), _OPTIONAL)
    return as_text("", [Section("", lines), table, Section("", ("", found.test))], report.width)


def _cells(change: CallChange, scale: float) -> tuple[Cell, ...]:
    times = (change.before, change.after, change.own_before, change.own_after)
    before, after, own_before, own_after = (None if time is None else shown_time(time, scale) for time in times)
    return change.verdict, change.call or ROOT, change.class_name, before, after, change.ratio, own_before, own_after
