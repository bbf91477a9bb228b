"""`modelexport catalog`: what a batch did: which jobs failed and why, and what changed."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.options import LimitOption
from modelexport.cli.output import FINDINGS, Output, ReportFile, format_option, json_text
from modelexport.cli.pages import Section, as_csv, as_text, limited
from modelexport.display import counted, shortened
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.job_results import Catalog, CatalogChanges, CatalogStats

_VERSION = re.compile(r"(?P<library>[\w-]+)=(?P<version>.+)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\dZ?)?)?")
_MESSAGE_CHARACTERS = 160
_MEGABYTE = 1e6


class CatalogAction(enum.StrEnum):
    """What is shown."""

    LS = "ls"
    SHOW = "show"
    DIFF = "diff"
    STATS = "stats"


class CatalogFormat(enum.StrEnum):
    """How it is shown."""

    HUMAN = "human"
    JSON = "json"
    CSV = "csv"


def catalog(
    *,
    action: Annotated[
        CatalogAction,
        typer.Argument(help="ls: all jobs; show: one job; diff: what changed; stats: counts, slowest, largest."),
    ],
    results: Annotated[str, typer.Argument(help="The folder or URL of a batch.", show_default=False)],
    other: Annotated[
        str | None, typer.Argument(help="show: the job. diff: a later batch to compare with.", show_default=False)
    ] = None,
    status: Annotated[
        str | None, typer.Option(help="ls: only jobs with this status or failure: failed, timed_out, …")
    ] = None,
    attempts: Annotated[bool, typer.Option("--attempts", help="ls: every attempt, not only the last.")] = False,
    before: Annotated[
        str | None, typer.Option(help="diff: the earlier state: a date, or a version such as torch=2.12.0.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="diff: the later state; by default the last.")] = None,
    limit: LimitOption = None,
    output_format: Annotated[CatalogFormat | None, format_option("For people, JSON, or CSV (ls).")] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Show what a batch did: which jobs failed and why, and what changed.

    diff exits with 1 if a job fails that worked before.

    Examples:

        modelexport catalog ls exports --status failed

        modelexport catalog show exports resnet18-opset18

        modelexport catalog diff exports --before torch=2.12.0 --after torch=2.13.0

        modelexport catalog diff last-week this-week
    """
    _check_options(action, other, status=status, attempts=attempts, before=before, after=after)
    form = report.form(output_format, CatalogFormat)
    if form is CatalogFormat.CSV and action is not CatalogAction.LS:
        raise InputError(f"catalog {action} has no CSV: use --format json")
    report.check()
    from msgspec import to_builtins

    from modelexport.job_results import catalog_stats, read_catalog

    found = read_catalog(results)
    for problem in found.problems:
        out.note(f"note: {problem}")
    if action is CatalogAction.DIFF:
        _diff(found, other, before, after, form, report, out)
        return
    if action is CatalogAction.LS:
        rows = _chosen(found.rows() if attempts else found.latest(), status)
        report.write(_listed(rows, form, report, report.rows(limit)), out)
    elif action is CatalogAction.SHOW:
        report.write(_shown(found, str(other), form, report.width), out)
    else:
        counts = catalog_stats(found)
        is_json = form is CatalogFormat.JSON
        report.write(json_text(to_builtins(counts)) if is_json else _stats_text(counts, report.width), out)


def _check_options(action: CatalogAction, other: str | None, **options: Any) -> None:
    allowed = {CatalogAction.LS: ("status", "attempts"), CatalogAction.DIFF: ("before", "after")}.get(action, ())
    for name, value in options.items():
        if value and name not in allowed:
            raise InputError(f"catalog {action} has no --{name}: leave it out")
    if action is CatalogAction.SHOW and other is None:
        raise InputError("catalog show needs the name of a job; modelexport catalog ls lists them")
    if action in (CatalogAction.LS, CatalogAction.STATS) and other is not None:
        raise InputError(f"catalog {action} takes one batch: leave out {other}")
    if action is CatalogAction.DIFF and other is None and not options["before"]:
        raise InputError("catalog diff needs two states: --before 2026-11-01, --before torch=2.12.0, or a second batch")


def _chosen(rows: Sequence[dict[str, Any]], status: str | None) -> list[dict[str, Any]]:
    from modelexport.job_results import Failure, Status

    if status is not None and status not in (*Status, *Failure):
        raise InputError(f"--status {status!r} is unknown: use {', '.join((*Status, *Failure))}")
    return [row for row in rows if status is None or status in (row["status"], row["failure"])]


def _listed(rows: Sequence[dict[str, Any]], form: CatalogFormat, report: ReportFile, limit: int) -> str:
    from modelexport.job_results import printed_rows

    content = printed_rows(rows)
    if form is CatalogFormat.JSON:
        return json_text(content)
    if form is CatalogFormat.CSV:
        names = list(content["jobs"][0]) if rows else ["job"]
        return as_csv(names, [[row[name] for name in names] for row in content["jobs"]])
    headers = ("job", "status", "strategy", "check", "verify", "MB", "seconds", "time")
    cells = [
        (
            row["job"],
            row["failure"] or row["status"],
            row["strategy"],
            row["checked"],
            {None: "", 0: "did not pass", 1: "passed"}[row["verified"]],
            _megabytes(row["bytes"]),
            f"{row['seconds']:.1f}",
            row["time"],
        )
        for row in rows
    ]
    table = limited("", headers, cells, limit, ("time", "check", "MB", "strategy", "verify"))
    messages = [f"{row['job']}: {shortened(row['message'], _MESSAGE_CHARACTERS)}" for row in rows if row["message"]]
    hidden = len(messages) - len(messages[: limit or None])
    why = Section("Why", tuple(messages[: limit or None]), left_out=hidden)
    counts = Counter(row["status"] for row in rows)
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), reverse=True))
    footer = Section("", ("", f"{counted(len(rows), 'row')}: {words}" if rows else "no job has this status"))
    return as_text("", [table, *([why] if messages else []), footer], report.width)


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / _MEGABYTE:.2f}"


def _shown(found: Catalog, job: str, form: CatalogFormat, width: int) -> str:
    rows = [row for row in found.rows() if row["job"] == job]
    if not rows:
        import difflib

        close = difflib.get_close_matches(job, [row["job"] for row in found.latest()], n=3, cutoff=0.4)
        likely = f"; did you mean {' or '.join(close)}?" if close else ""
        raise InputError(f"{found.output} has no job {job!r}{likely}")
    from modelexport.job_results import printed_job

    record = found.record(rows[-1])
    if form is CatalogFormat.JSON:
        return json_text(printed_job(found, rows))
    facts = {
        "model": record.model,
        "status": record.status.value,
        "failure": "" if record.failure is None else record.failure.value,
        "message": record.message,
        "strategy": f"{record.result.get('strategy', '')} {record.result.get('exporter', '')}".strip(),
        "check": record.result.get("check", {}).get("outcome", ""),
        "time": record.time,
        "seconds": f"{record.seconds:.1f}",
        "peak memory": f"{record.peak_memory_bytes / _MEGABYTE:.0f} MB" if record.peak_memory_bytes else "",
        "options": ", ".join(f"{name}={value}" for name, value in record.options.items()),
        "key": record.key,
        "log": record.log,
    }
    steps = tuple(
        (name, "passed" if step.get("passed") else "did not pass", _step_text(step))
        for name, step in record.result.get("steps", {}).items()
    )
    tried = tuple(
        (f"{attempt['strategy']} ({attempt['exporter']})", attempt.get("variant", ""), attempt["error"] or "written")
        for attempt in record.result.get("attempts", ())
    )
    history = tuple((row["time"], row["failure"] or row["status"], row["source"], row["torch"]) for row in rows)
    sections = [
        Section("", (), ("", " "), tuple((name, value) for name, value in facts.items() if value)),
        Section("Files", tuple(f"{record.folder}/{file.name}  {file.size:,}" for file in record.files)),
        Section("Exporters that were tried", (), ("exporter", "variant", "result"), tried),
        Section("Steps", (), ("step", "result", "found"), steps),
        Section("Attempts", (), ("time", "status", "source", "torch"), history),
    ]
    return as_text(job, [section for section in sections if section.lines or section.rows], width)


def _step_text(step: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in step.items() if name != "passed" and value not in ("", [], None)}
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def _diff(
    found: Catalog,
    other: str | None,
    before: str | None,
    after: str | None,
    form: CatalogFormat,
    report: ReportFile,
    out: Output,
) -> None:
    from modelexport.job_results import compare_catalogs, read_catalog

    later = found if other is None else read_catalog(other)
    states = []
    for catalogue, text, name in ((found, before, "--before"), (later, after, "--after")):
        rows = catalogue.latest(**_state(text, name))
        if not rows:
            raise InputError(f"{name} {text}: {catalogue.output} has no attempt in this state")
        states.append(rows)
    changes = compare_catalogs(*states)
    if form is CatalogFormat.JSON:
        report.write(json_text(changes.as_dict()), out)
    else:
        report.write(_changes_text(changes, report.width), out)
    if any(change.kind == "broken" for change in changes.changes):
        raise typer.Exit(FINDINGS)


def _state(text: str | None, name: str) -> dict[str, Any]:
    """The arguments of `Catalog.latest` for a date or a version."""
    if text is None:
        return {}
    match = _VERSION.fullmatch(text)
    if match is not None:
        return {"where": {match["library"]: match["version"]}}
    if _DATE.fullmatch(text):
        return {"until": text}
    raise InputError(f"{name} {text!r} cannot be read: write a date as 2026-11-18, or a version as torch=2.12.0")


def _changes_text(changes: CatalogChanges, width: int) -> str:
    rows = tuple(
        (
            change.kind,
            change.job,
            "; ".join(f"{name}: {_value(old)} → {_value(change.after[name])}" for name, old in change.before.items()),
            shortened(change.message, _MESSAGE_CHARACTERS),
        )
        for change in changes.changes
    )
    counts = ", ".join(f"{count} {kind}" for kind, count in changes.counts.items())
    footer = Section("", ("", f"{counted(changes.jobs, 'job')}: {counts or 'nothing changed'}"))
    return as_text("", [Section("", (), ("change", "job", "difference", "message"), rows), footer], width)


def _value(value: Any) -> str:
    return {None: "none", 0: "no", 1: "yes"}.get(value) or (str(value)[:12] if value else "none")


def _stats_text(found: CatalogStats, width: int) -> str:
    def sections() -> Iterator[Section]:
        for name in ("status", "failures", "strategies", "checks"):
            counts = sorted(getattr(found, name).items(), key=lambda item: -item[1])
            yield Section(name.capitalize(), (), (name, "jobs"), tuple(counts))
        yield Section("Slowest", (), ("job", "seconds"), tuple(found.slowest.items()))
        sizes = tuple((job, size / _MEGABYTE) for job, size in found.largest.items())
        yield Section("Largest", (), ("job", "MB"), sizes)
        yield Section("Worst verified", (), ("job", "x tolerance"), tuple(found.worst_verified.items()))

    return as_text(
        f"{counted(found.jobs, 'job')}, {counted(found.attempts, 'attempt')}",
        [section for section in sections() if section.rows],
        width,
    )
