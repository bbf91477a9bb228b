"""Records: one immutable JSON file for each attempt of a job, which any number of coordinators can write."""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from modelexport.errors import StorageError
from modelexport.job_results.locations import Location
from modelexport.job_results.stored_results import Size, StoredFile, check_inside, check_result

RECORDS = "records"
LOGS = "logs"
_KEY_CHARACTERS = 16


class Status(enum.StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    # The file was written, and the check of the export or one of the steps found something wrong.
    FINDINGS = "findings"
    FAILED = "failed"


class Failure(enum.StrEnum):
    """Why an attempt failed."""

    BAD_INPUT = "bad_input"
    NOT_EXPORTABLE = "not_exportable"
    UNSUPPORTED_LIBRARY = "unsupported_library"
    STORAGE = "storage"
    NETWORK = "network"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    # An exception that is none of this package.
    ERROR = "error"

    @property
    def is_transient(self) -> bool:
        """Whether the same attempt may succeed later: the network, the storage, or a process that was killed."""
        return self in (Failure.NETWORK, Failure.STORAGE, Failure.KILLED)


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a job.

    Attributes:
        id: The name of the record.
        job: The name of the job.
        model: The model reference.
        key: The key of the job.
        status: How it ended.
        failure: Why it failed.
        error: The class of the exception that it failed with.
        message: What went wrong.
        time: When it began, as ISO 8601 in UTC.
        attempt: The number of the attempt, from 1.
        source: ``export``, or ``cache`` or ``output`` where the files were there already.
        engine: The engine that ran it.
        machine: The name of the machine.
        seconds: Wall-clock time.
        cpu_seconds: CPU time.
        peak_memory_bytes: The largest resident memory.
        limits: The limits of the process.
        options: The fields of the job.
        versions: The versions of Python and of the libraries.
        folder: The folder of the files, within the output.
        files: The files.
        digest: A hash of the files.
        log: The log, within the output.
        result: What the job said of its files: strategy, attempts, coverage, check, steps, ...
    """

    id: str
    job: str
    model: str
    key: str
    status: Status
    failure: Failure | None = None
    error: str = ""
    message: str = ""
    time: str
    attempt: Size = 1
    source: str = "export"
    engine: str = "local"
    machine: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: Size = 0
    limits: dict[str, float | None] = msgspec.field(default_factory=dict)
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    folder: str = ""
    files: tuple[StoredFile, ...] = ()
    digest: str = ""
    log: str = ""
    result: dict[str, Any] = msgspec.field(default_factory=dict)
    schema_version: int = 1

    def __post_init__(self) -> None:
        check_inside(self.folder)
        check_result(self.result)


class RecordName(msgspec.Struct, frozen=True):
    """What the name of a record says of it, without reading it."""

    id: str
    key: str
    status: str
    failure: str


def utc_time(seconds: float | None = None) -> str:
    """A time in UTC, by default now: ``2026-11-18T02:10:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def new_record_id(key: str, status: Status, failure: Failure | None) -> str:
    """A name that sorts by time and that no other coordinator chooses."""
    now = time.time()
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f"{int(now * 1e6) % 10**6:06d}"
    outcome = status.value if failure is None else f"{status.value}-{failure.value}"
    return f"{moment}-{key[:_KEY_CHARACTERS]}-{outcome}-{secrets.token_hex(4)}"


def record_names(location: Location) -> list[RecordName]:
    """All records of an output by their names, the oldest first.

    Raises:
        StorageError: They could not be listed.
    """
    found = []
    for name in location.names(RECORDS):
        parts = name.removesuffix(".json").split("-")
        if name.endswith(".json") and len(parts) >= 4:
            found.append(RecordName("-".join(parts), parts[1], parts[2], parts[3] if len(parts) > 4 else ""))
    return found


def write_record(location: Location, record: Record) -> None:
    """Write a record.

    Raises:
        StorageError: It could not be written.
    """
    location.write(f"{RECORDS}/{record.id}.json", msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_record(location: Location, identifier: str) -> Record:
    """Read a record.

    Raises:
        StorageError: It could not be read, or is not a record.
    """
    name = f"{RECORDS}/{identifier}.json"
    try:
        return msgspec.json.decode(location.read(name), type=Record)
    except msgspec.DecodeError as error:
        raise StorageError(f"{location.joined(name)} is not a record: {error}") from error


def latest_by_key(names: Iterable[RecordName]) -> dict[str, RecordName]:
    """The newest record for each key, as names have it."""
    return {name.key: name for name in sorted(names, key=lambda name: name.id)}


def key_in_names(key: str) -> str:
    """A key as the names of records have it."""
    return key[:_KEY_CHARACTERS]
