"""One attempt of a job, on the machine where its files are: run it in a fresh process, store its files, record it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from modelexport.batching.export_job import IMPORTS, ExportPayload
from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.jobs import Job
from modelexport.batching.keys import current_key
from modelexport.errors import StorageError
from modelexport.job_results import (
    LOGS,
    Entry,
    EntryStore,
    Failure,
    Location,
    Record,
    Status,
    new_record_id,
    read_record,
    redacted,
    secret_values,
    utc_time,
    write_record,
)
from modelexport.processes import Ending, Outcome, ProcessLimits, ProcessPool

EXPORT_JOB = "modelexport.batching.export_job:export_job"
PREPARE = "modelexport.batching.export_job:prepare"
_LOG_BYTES = 2**20
_STAGING = "modelexport-batch"
_FAILURES = {
    Ending.CRASHED: Failure.CRASHED,
    Ending.OUT_OF_MEMORY: Failure.OUT_OF_MEMORY,
    Ending.TIMED_OUT: Failure.TIMED_OUT,
    Ending.KILLED: Failure.KILLED,
}
# By class of this package, the nearest first.
_FAILURES_BY_ERROR = {
    "InputError": Failure.BAD_INPUT,
    "ExportError": Failure.NOT_EXPORTABLE,
    "UnsupportedLibraryError": Failure.UNSUPPORTED_LIBRARY,
    "StorageError": Failure.STORAGE,
}


class Attempt(msgspec.Struct, frozen=True):
    """An attempt to do a job.

    Attributes:
        job: The job.
        key: Its key.
        number: The number of the attempt, from 1.
        limits: The limits of its process.
        engine: The name of the engine.
        versions: The versions that the key has.
    """

    job: Job
    key: str
    number: int
    limits: ProcessLimits
    engine: str
    versions: dict[str, str]


class Stores:
    """Where attempts store their files: the output, and the cache if there is one. Ray sends them to its workers."""

    def __init__(self, output: Location, cache: Location | None) -> None:
        self.output = EntryStore(output, named=True)
        self.cache = None if cache is None else EntryStore(cache, named=False)
        self.secrets = secret_values({**output.storage_options, **(cache.storage_options if cache else {})})

    def imports_of(self, key: str, record: str | None = None) -> dict[str, str] | None:
        """What the result under a key imported; None without a result, or if the result does not say.

        Args:
            key: The key.
            record: The name of the record of an attempt with this key.

        Raises:
            StorageError: The output or the cache could not be read.
        """
        try:
            found = self.output.get(key) or (self.cache and self.cache.get(key))
            known = found or (read_record(self.output.location, record) if record else None)
        except StorageError as error:
            if isinstance(error.__cause__, msgspec.DecodeError):
                # What nothing can be: the job is run again, with another key.
                return {"": "damaged"}
            raise
        return known.result.get("imports") if known else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Stores, (self.output.location, None if self.cache is None else self.cache.location)


def run_attempt(pool: ProcessPool, attempt: Attempt, stores: Stores) -> Record | None:
    """Do a job once, and record what came of it.

    Returns:
        The record; None if the job was stopped, which is not recorded.

    Raises:
        StorageError: The record could not be written.
    """
    started = time.time()
    with staging_folder() as staging:
        try:
            # Another coordinator may have stored a result since the plan, also one of other sources.
            key = current_key(attempt.key, attempt.job, FileHashes(None), stores.imports_of)
            attempt = msgspec.structs.replace(attempt, key=key)
            entry, source = _from_stores(attempt, stores, staging)
            outcome = Outcome(Ending.RETURNED)
        except StorageError as error:
            return _write(
                attempt, stores, staging, _failed(attempt, started, Failure.STORAGE, "StorageError", str(error))
            )
        if entry is None:
            files = staging / "files"
            files.mkdir()
            payload = ExportPayload(attempt.job, str(files), attempt.limits.seconds)
            outcome = pool.run(EXPORT_JOB, msgspec.to_builtins(payload), attempt.limits, staging / "log")
            if outcome.ending is Ending.STOPPED:
                return None
            if (staging / IMPORTS).is_file():
                imports = {"imports": msgspec.json.decode((staging / IMPORTS).read_bytes())}
                outcome = msgspec.structs.replace(outcome, value={**(outcome.value or {}), **imports})
            if outcome.ending is not Ending.RETURNED:
                return _write(attempt, stores, staging, _failed_process(attempt, started, outcome))
            try:
                entry = _publish(attempt, stores, files, outcome.value)
            except StorageError as error:
                record = _failed(attempt, started, Failure.STORAGE, "StorageError", str(error), outcome)
                return _write(attempt, stores, staging, record)
        return _write(attempt, stores, staging, success_record(attempt, entry, source, started, outcome))


def _from_stores(attempt: Attempt, stores: Stores, staging: Path) -> tuple[Entry | None, str]:
    """The entry, where another coordinator or an earlier run stored it; copied from the cache if that has it."""
    entry = stores.output.get(attempt.key)
    if entry is not None or stores.cache is None:
        return entry, "output" if entry is not None else "export"
    cached = stores.cache.get(attempt.key)
    if cached is None:
        return None, "export"
    folder = staging / "cached"
    folder.mkdir()
    try:
        stores.cache.fetch(cached, folder)
    except StorageError as error:
        # A file is missing or damaged, rather than out of reach: the entry is useless.
        if error.__cause__ is None or isinstance(error.__cause__, FileNotFoundError):
            stores.cache.remove(attempt.key)
            return None, "export"
        raise
    return stores.output.put(attempt.key, attempt.job.name, folder, cached.result), "cache"


def _publish(attempt: Attempt, stores: Stores, files: Path, result: dict[str, Any]) -> Entry:
    imports = result.get("imports")
    if stores.cache is not None:
        winner = stores.cache.put(attempt.key, attempt.job.name, files, result)
        if winner.result != result:
            # Another coordinator was first: all use what it stored.
            with contextlib.suppress(StorageError):
                other = files.with_name("winner")
                stores.cache.fetch(winner, other)
                files, result = other, winner.result
    entry = stores.output.put(attempt.key, attempt.job.name, files, result)
    if entry.result.get("imports") != imports:
        # The next attempt has another key.
        raise StorageError(f"{attempt.job.name}: another batch stored a result of other sources at the same time")
    return entry


def success_record(
    attempt: Attempt, entry: Entry, source: str, started: float, outcome: Outcome | None = None
) -> Record:
    """The record of a job whose files are stored."""
    result = entry.result
    wrong = result.get("wrong") or not all(step.get("passed") for step in result.get("steps", {}).values())
    status = Status.FINDINGS if wrong else Status.SUCCEEDED
    message = _findings(result) if wrong else ""
    return Record(
        id=new_record_id(attempt.key, status, None),
        status=status,
        message=message,
        source=source,
        folder=entry.folder,
        files=entry.files,
        digest=entry.digest,
        result=result,
        **_common(attempt, started, outcome),
    )


def _findings(result: dict[str, Any]) -> str:
    found = [f"check: {result['check'].get('outcome')} {result['check'].get('reason', '')}"] if result["wrong"] else []
    for name, step in result.get("steps", {}).items():
        if not step.get("passed"):
            found.append(f"{name}: {step.get('message') or 'did not pass'}")
    return "; ".join(text.strip() for text in found)


def _failed_process(attempt: Attempt, started: float, outcome: Outcome) -> Record:
    error = outcome.error
    if error is None or outcome.ending is Ending.OUT_OF_MEMORY:
        message = outcome.detail if error is None else f"{outcome.detail}: {error.message}"
        failure = _FAILURES[outcome.ending]
        if failure is Failure.OUT_OF_MEMORY and attempt.limits.memory_bytes is not None:
            message += f"; the limit is {attempt.limits.memory_bytes / 2**30:.3g} GiB"
        return _failed(attempt, started, failure, error.class_name if error else "", message, outcome)
    if error.attributes.get("network"):
        failure = Failure.NETWORK
    else:
        named = (_FAILURES_BY_ERROR[name] for name in error.bases if name in _FAILURES_BY_ERROR)
        failure = next(named, Failure.ERROR) if "ModelExportError" in error.bases else Failure.ERROR
    return _failed(attempt, started, failure, error.class_name, error.message, outcome)


def _failed(
    attempt: Attempt, started: float, failure: Failure, error: str, message: str, outcome: Outcome | None = None
) -> Record:
    return Record(
        id=new_record_id(attempt.key, Status.FAILED, failure),
        status=Status.FAILED,
        failure=failure,
        error=error,
        message=message,
        result=(outcome and outcome.value) or {},
        **_common(attempt, started, outcome),
    )


def _common(attempt: Attempt, started: float, outcome: Outcome | None) -> dict[str, Any]:
    return {
        "job": attempt.job.name,
        "model": attempt.job.model,
        "key": attempt.key,
        "time": utc_time(started),
        "attempt": attempt.number,
        "engine": attempt.engine,
        "machine": platform.node(),
        "seconds": round(time.time() - started, 3),
        "cpu_seconds": outcome.cpu_seconds if outcome else 0.0,
        "peak_memory_bytes": outcome.peak_memory_bytes if outcome else 0,
        "limits": msgspec.to_builtins(attempt.limits),
        "options": attempt.job.settings(),
        "versions": attempt.versions,
    }


def _write(attempt: Attempt, stores: Stores, staging: Path, record: Record) -> Record:
    """Write the log, then the record, both without secrets."""
    location = stores.output.location
    log = staging / "log"
    if log.is_file():
        name = f"{LOGS}/{record.id}.log"
        with contextlib.suppress(StorageError):
            location.write(name, redacted(_tail(log), stores.secrets).encode())
            record = msgspec.structs.replace(record, log=name)
    clean = msgspec.json.decode(redacted(msgspec.json.encode(record).decode(), stores.secrets), type=Record)
    write_record(location, clean)
    return clean


def _tail(log: Path) -> str:
    size = log.stat().st_size
    with log.open("rb") as file:
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read().decode(errors="replace")
    return text if size <= _LOG_BYTES else f"... the first {size - _LOG_BYTES:,} bytes are left out\n{text}"


@contextlib.contextmanager
def staging_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end; those of processes that were killed are removed by `remove_leftovers`."""
    prefix = f"{_STAGING}-{platform.node()}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def remove_leftovers() -> None:
    """Remove temporary folders of processes of this machine and user that no longer exist."""
    pattern = re.compile(rf"{_STAGING}-{re.escape(platform.node())}-(\d+)-\w+")
    for path in Path(tempfile.gettempdir()).glob(f"{_STAGING}-*"):
        match = pattern.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if match is not None and not _exists(int(match[1])) and path.stat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
