"""What `modelexport catalog` prints as JSON: all jobs, one job, counts, and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from modelexport.hierarchy import json_schema
from modelexport.job_results.catalogue import COLUMNS, Catalog, Row
from modelexport.job_results.changes import CatalogChanges
from modelexport.job_results.records import Record

_MOST = 5
_TYPES: dict[str, Any] = {"text": str, "integer": int | None, "real": float | None}

# A row of the catalogue without the whole record.
if TYPE_CHECKING:
    PrintedRow = Any
else:
    PrintedRow = msgspec.defstruct(
        "PrintedRow", [(name, _TYPES[kind]) for name, kind in COLUMNS.items() if name != "record"], frozen=True
    )


class PrintedJobs(msgspec.Struct, frozen=True):
    """The rows that ``catalog ls`` shows."""

    jobs: tuple[PrintedRow, ...]
    schema_version: int = 1


class PrintedJob(msgspec.Struct, frozen=True):
    """All attempts of a job, as ``catalog show`` has them."""

    job: str
    attempts: tuple[Record, ...]
    schema_version: int = 1


class CatalogStats(msgspec.Struct, frozen=True):
    """Counts over the last attempts of all jobs.

    Attributes:
        jobs: How many jobs.
        attempts: How many attempts they had.
        status: The number of jobs by status.
        failures: The number of jobs by class of failure.
        strategies: The number of jobs by strategy and exporter.
        checks: The number of jobs by the outcome of the check.
        slowest: The seconds of the slowest jobs.
        largest: The bytes of the largest.
        worst_verified: The largest error, in multiples of the tolerance, of the worst verified.
        schema_version: The version of this format.
    """

    jobs: int
    attempts: int
    status: dict[str, int]
    failures: dict[str, int]
    strategies: dict[str, int]
    checks: dict[str, int]
    slowest: dict[str, float]
    largest: dict[str, float]
    worst_verified: dict[str, float]
    schema_version: int = 1


class PrintedChanges(CatalogChanges, frozen=True, kw_only=True):
    """The changes that ``catalog diff`` shows, with their counts."""

    counts: dict[str, int]


def catalog_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport catalog --format json``."""
    return json_schema("modelexport catalog", PrintedJobs, PrintedJob, CatalogStats, PrintedChanges)


def printed_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON of ``catalog ls``."""
    plain = [{name: value for name, value in row.items() if name != "record"} for row in rows]
    return {"jobs": plain, "schema_version": 1}


def printed_job(catalog: Catalog, rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON of ``catalog show``."""
    found: dict[str, Any] = msgspec.to_builtins(PrintedJob(rows[0]["job"], tuple(catalog.record(row) for row in rows)))
    return found


def catalog_stats(catalog: Catalog) -> CatalogStats:
    """The counts of ``catalog stats``."""
    rows = catalog.latest()
    return CatalogStats(
        jobs=len(rows),
        attempts=len(catalog.rows()),
        status=dict(Counter(row["status"] for row in rows)),
        failures=dict(Counter(row["failure"] for row in rows if row["failure"])),
        strategies=dict(Counter(f"{row['strategy']} ({row['exporter']})" for row in rows if row["strategy"])),
        checks=dict(Counter(row["checked"] for row in rows if row["checked"])),
        slowest=_top(rows, "seconds"),
        largest=_top(rows, "bytes"),
        worst_verified=_top(rows, "worst_excess"),
    )


def _top(rows: Sequence[Row], name: str) -> dict[str, float]:
    known = [row for row in rows if row[name] is not None]
    return {row["job"]: row[name] for row in sorted(known, key=lambda row: row[name], reverse=True)[:_MOST]}
