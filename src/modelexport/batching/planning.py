"""The plan of a batch: for each job its key, and whether it is to be exported, copied or left alone."""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence

import msgspec

from modelexport.batching.attempts import Stores
from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.jobs import Job
from modelexport.batching.keys import current_key, installed_versions, key_of
from modelexport.errors import InputError, ModelSourceError
from modelexport.job_results import Failure, RecordName, Status, key_in_names, latest_by_key, read_record, record_names
from modelexport.processes import ProcessLimits

DEFAULT_TIMEOUT = 1800.0
_GIBIBYTE = 2**30
_SHOWN = 5


class Action(enum.StrEnum):
    """What is done for a job."""

    EXPORT = "export"
    # The cache has it: its files are copied.
    COPY = "copy"
    # The output has it, but no record says so: the coordinator that exported it was killed.
    RECORD = "record"
    UP_TO_DATE = "up_to_date"
    # It failed before in the same way as it would again.
    FAILED_BEFORE = "failed_before"


class PlannedJob(msgspec.Struct, frozen=True):
    """What is done for one job.

    Attributes:
        job: The job.
        key: Its key.
        limits: The limits of its process.
        action: What is done.
        status: How the last attempt with this key ended, if there is one.
        failure: Why it failed, if it did.
        record: The name of the record of that attempt.
    """

    job: Job
    key: str
    limits: ProcessLimits
    action: Action
    status: str = ""
    failure: str = ""
    record: str = ""


def plan_jobs(
    jobs: Sequence[Job],
    stores: Stores,
    hashes: FileHashes,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    memory: float | None = None,
    retry_failed: bool = False,
) -> list[PlannedJob]:
    """The plan.

    Args:
        jobs: The jobs.
        stores: The output and the cache.
        hashes: The known hashes of files.
        timeout: The seconds of a job that does not say how many.
        memory: The same for GiB of memory; None for the memory of the machine.
        retry_failed: Whether jobs are exported again that failed before with the same key.

    Raises:
        InputError: Models are missing.
        StorageError: The output or the cache cannot be listed.
    """
    keys = _keys(jobs, hashes)
    finished = stores.output.list_keys()
    cached = stores.cache.list_keys() if stores.cache is not None else set()
    latest = latest_by_key(record_names(stores.output.location))
    names = {key_in_names(key): None for key in finished | cached} | {key: name.id for key, name in latest.items()}

    def imports_of(key: str) -> dict[str, str] | None:
        short = key_in_names(key)
        return stores.imports_of(key, names[short]) if short in names else None

    plan = []
    for job in jobs:
        key, limits = current_key(keys[job.name], job, hashes, imports_of), _limits(job, timeout, memory)
        record = latest.get(key_in_names(key))
        known = {} if record is None else {"status": record.status, "failure": record.failure, "record": record.id}
        action = Action.COPY if key in cached else Action.EXPORT
        if key in finished:
            action = Action.RECORD if record is None or record.status == Status.FAILED else Action.UP_TO_DATE
        elif action is Action.EXPORT and record is not None and not retry_failed:
            action = Action.FAILED_BEFORE if _fails_again(record, limits, stores) else Action.EXPORT
        plan.append(PlannedJob(job, key, limits, action, **known))
    return plan


def _keys(jobs: Sequence[Job], hashes: FileHashes) -> dict[str, str]:
    keys, missing = {}, []
    for job in jobs:
        try:
            keys[job.name] = key_of(job, hashes, installed_versions())
        except ModelSourceError as error:
            missing.append(str(error))
    if missing:
        more = f"; and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InputError("; ".join(dict.fromkeys(missing[:_SHOWN])) + more)
    return keys


def _limits(job: Job, timeout: float | None, memory: float | None) -> ProcessLimits:
    gibibytes = job.memory if job.memory is not None else memory
    amount = None if gibibytes is None else int(gibibytes * _GIBIBYTE)
    return ProcessLimits(
        seconds=job.timeout if job.timeout is not None else timeout,
        memory_bytes=amount if amount is not None else _physical_memory(),
    )


def _physical_memory() -> int | None:
    """A job that needs more than the machine has is to fail alone, rather than end others."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None


def _fails_again(record: RecordName, limits: ProcessLimits, stores: Stores) -> bool:
    """Whether an attempt with these limits would fail in the same way."""
    if record.status != Status.FAILED:
        # Its files were removed.
        return False
    failure = Failure(record.failure)
    if failure.is_transient:
        return False
    if failure not in (Failure.TIMED_OUT, Failure.OUT_OF_MEMORY):
        return True
    name = "seconds" if failure is Failure.TIMED_OUT else "memory_bytes"
    before, now = read_record(stores.output.location, record.id).limits.get(name), getattr(limits, name)
    return before is None or (now is not None and now <= before)
