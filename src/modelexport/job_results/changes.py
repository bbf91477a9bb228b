"""What changed between two states of a catalogue: jobs that fail now, that work now, that are new or different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from modelexport.display import Summary, summarized
from modelexport.errors import InputError

_COMPARED = ("status", "strategy", "exporter", "checked", "verified", "validated", "digest")
_NEEDED = {"job", "message", *_COMPARED}


class JobChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job whose last attempts differ.

    Attributes:
        job: The name of the job.
        kind: ``broken`` (it fails now, or has findings), ``fixed``, ``added``, ``removed`` or ``changed``.
        before: The fields that differ, as they were.
        after: The same fields now.
        message: What goes wrong now.
    """

    job: str
    kind: str
    before: dict[str, Any] = msgspec.field(default_factory=dict)
    after: dict[str, Any] = msgspec.field(default_factory=dict)
    message: str = ""


def _summary(changes: CatalogChanges) -> Summary:
    facts = {"jobs": changes.jobs, **changes.counts}
    rows = [(change.kind, change.job, change.message) for change in changes.changes]
    return Summary(facts, ("kind", "job", "message"), rows)


@summarized(_summary)
class CatalogChanges(msgspec.Struct, frozen=True):
    """What changed between two states of a catalogue, or between two catalogues.

    Attributes:
        changes: The jobs that differ: broken, fixed, changed, added, removed.
        jobs: How many jobs were compared.
        schema_version: The version of this format.
    """

    changes: tuple[JobChange, ...]
    jobs: int
    schema_version: int = 1

    @property
    def counts(self) -> dict[str, int]:
        """The number of changes of each kind."""
        kinds = [change.kind for change in self.changes]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}

    def as_dict(self) -> dict[str, Any]:
        """The changes for JSON."""
        content: dict[str, Any] = {**msgspec.to_builtins(self), "counts": self.counts}
        return content


def compare_catalogs(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> CatalogChanges:
    """Compare the last attempts of jobs, as `Catalog.latest` returns them.

    Args:
        before: The rows of the earlier state.
        after: Those of the later state.

    Raises:
        InputError: An argument does not have such rows.
    """
    old, new = _by_job("before", before), _by_job("after", after)
    found = [change for job in sorted({*old, *new}) if (change := _change(job, old.get(job), new.get(job))) is not None]
    order = ("broken", "fixed", "changed", "added", "removed")
    return CatalogChanges(tuple(sorted(found, key=lambda change: order.index(change.kind))), len({*old, *new}))


def _by_job(argument: str, rows: Any) -> dict[str, Mapping[str, Any]]:
    # Untyped callers pass anything.
    if not isinstance(rows, Sequence) or not all(map(_is_row, rows)):
        raise InputError(
            f"{argument}: rows of a catalog are compared, each with {', '.join(sorted(_NEEDED))}: give what "
            "Catalog.latest() returns"
        )
    return {row["job"]: row for row in rows}


def _is_row(row: Any) -> bool:
    return isinstance(row, Mapping) and row.keys() >= _NEEDED and isinstance(row["job"], str)


def _change(job: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> JobChange | None:
    if old is None or new is None:
        return JobChange(job, "added" if old is None else "removed", message=(new or {}).get("message", ""))
    differing = [name for name in _COMPARED if old[name] != new[name]]
    if not differing:
        return None
    worked, works = (row["status"] == "succeeded" for row in (old, new))
    kind = "changed" if worked == works else "fixed" if works else "broken"
    return JobChange(
        job, kind, {name: old[name] for name in differing}, {name: new[name] for name in differing}, new["message"]
    )
