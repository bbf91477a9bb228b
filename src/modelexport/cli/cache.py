"""`modelexport cache`: what the cache of batches has, and the removal of what is old."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from modelexport.cli.options import option
from modelexport.cli.output import Format, Output, ReportFile, ReportFormatOption, json_text
from modelexport.cli.pages import Section, as_text
from modelexport.display import counted

_DAY = 24 * 3600.0
_MEGABYTE = 1e6


class CacheAction(enum.StrEnum):
    """What is done."""

    INFO = "info"
    PRUNE = "prune"


def cache(
    *,
    action: Annotated[CacheAction, typer.Argument(help="info: what it has; prune: remove what is old or unused.")],
    place: Annotated[
        str,
        typer.Argument(help="The folder or URL of the cache.", envvar="MODELEXPORT_CACHE", show_default=False),
    ],
    older_than: Annotated[
        float | None, option(None, "prune: also remove entries that are older, in days.", "--older-than", min=0)
    ] = None,
    dry_run: Annotated[bool, option(None, "prune: only say what would be removed.", "--dry-run", "-n")] = False,
    output_format: ReportFormatOption = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Show what the cache of batches has, or remove what is old or unused.

    prune removes files that no entry refers to and that are older than a day, and with --older-than old entries. A
    batch that runs at the same time exports again what it misses.

    Examples:

        modelexport cache info ./cache

        modelexport cache prune ./cache --older-than 30
    """
    form = report.form(output_format, Format)
    report.check()
    from modelexport.job_results import cache_information, prune_cache

    if action is CacheAction.INFO:
        found = cache_information(place)
        facts = (
            ("entries", found.entries),
            ("files", found.files),
            ("MB", f"{found.bytes / _MEGABYTE:.2f}"),
            ("unused MB", f"{found.unused_bytes / _MEGABYTE:.2f}"),
        )
        text = as_text(place, [Section("", (), ("", " "), facts)], report.width)
    else:
        seconds = None if older_than is None else older_than * _DAY
        pruned = prune_cache(place, older_than=seconds, dry_run=dry_run)
        verb = "would remove" if dry_run else "removed"
        what = f"{counted(pruned.entries, 'entry', 'entries')} and {pruned.bytes / _MEGABYTE:.2f} MB of files"
        text = f"{verb} {what}\n"
        found = pruned
    report.write(json_text(found.as_dict()) if form is Format.JSON else text, out)
