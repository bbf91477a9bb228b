"""The catalogue: a SQLite table with a row for each record of an output, extended by what is new when it is opened."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from modelexport.display import Summary, summarized
from modelexport.errors import InputError, StorageError
from modelexport.job_results.locations import Location, user_cache
from modelexport.job_results.records import Record, read_record, record_names

FILE_NAME = "catalog.sqlite"
# Another version of the table is made again from the records.
_VERSION = 1
_READERS = 8
_LIBRARIES = ("python", "modelexport", "torch", "onnx", "onnxruntime", "transformers")
COLUMNS = {
    **dict.fromkeys(("id", "job", "model", "key", "status", "failure", "error", "message", "time"), "text"),
    **dict.fromkeys(("attempt",), "integer"),
    **dict.fromkeys(("source", "engine", "machine"), "text"),
    **dict.fromkeys(("seconds", "cpu_seconds"), "real"),
    **dict.fromkeys(("peak_memory_bytes", "bytes", "nodes", "tries"), "integer"),
    **dict.fromkeys(("strategy", "exporter", "checked"), "text"),
    **dict.fromkeys(("coverage", "worst_excess"), "real"),
    **dict.fromkeys(("verified", "validated"), "integer"),
    **dict.fromkeys(("folder", "digest", "log", *_LIBRARIES, "record"), "text"),
}

Row = dict[str, Any]


def _summary(catalog: Catalog) -> Summary:
    rows = catalog.latest()
    facts = {"output": catalog.output, "jobs": len(rows), "attempts": len(catalog.rows())}
    shown = [(row["job"], row["status"], row["failure"], row["strategy"], row["seconds"]) for row in rows]
    return Summary(facts, ("job", "status", "failure", "strategy", "seconds"), shown)


@summarized(_summary)
class Catalog:
    """Every attempt of every job of an output, as a table.

    Args:
        output: The folder or URL of a batch.
        storage_options: Arguments of the fsspec driver.

    Attributes:
        output: The folder or URL.
        path: The SQLite file with the table ``records``; None where it could not be written.
        problems: Records that could not be read.

    Raises:
        InputError: The output does not exist, or has no records.
        StorageError: The output cannot be read.
    """

    def __init__(self, output: str | Path, storage_options: Mapping[str, Any] | None = None) -> None:
        self._location = Location(output, storage_options)
        self.output = self._location.url
        self.problems: list[str] = []
        names = [name.id for name in record_names(self._location)]
        if not names:
            raise InputError(f"{self.output} has no records: give the output of modelexport batch")
        self.path, database = _opened(self._location)
        with contextlib.closing(database):
            found = self._updated(database, names)
            if not all(map(_has_types, found)):
                # Another program wrote to the table.
                database.execute("delete from records")
                found = self._updated(database, names)
        # Another coordinator may have added records in the meantime.
        listed = set(names)
        self._rows = [row for values in found if (row := dict(zip(COLUMNS, values, strict=True)))["id"] in listed]

    def rows(self) -> list[Row]:
        """A row for each attempt, the oldest first."""
        return [dict(row) for row in self._rows]

    def latest(self, where: Mapping[str, str] | None = None, until: str | None = None) -> list[Row]:
        """The last attempt of each job, by name.

        Args:
            where: Only attempts with these versions: ``{"torch": "2.13.0"}``.
            until: Only attempts that began no later: ``2026-11-18`` or ``2026-11-18T02:10:00Z``.
        """
        return sorted(_latest(self._rows, where or {}, until).values(), key=lambda row: str(row["job"]))

    def record(self, row: Row) -> Record:
        """The whole record of a row.

        Raises:
            StorageError: The row does not have it.
        """
        try:
            return msgspec.json.decode(row["record"], type=Record)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StorageError(
                f"{self.path}: the row of {row['id']} has no record ({error}); delete the file, it is made again"
            ) from error

    def to_pandas(self) -> Any:
        """The rows as a pandas data frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise InputError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame(self._rows, columns=list(COLUMNS))

    def _updated(self, database: sqlite3.Connection, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """The values of all rows, after those of new records were added."""
        known = {name for (name,) in database.execute("select id from records")}
        database.executemany("delete from records where id = ?", [(name,) for name in known.difference(names)])
        marks = ", ".join("?" for _ in COLUMNS)
        rows = [list(_row(record).values()) for record in self._read(sorted(set(names) - known))]
        database.executemany(f"insert or replace into records values ({marks})", rows)
        database.commit()
        return database.execute(f"select {', '.join(COLUMNS)} from records order by id").fetchall()

    def _read(self, names: Sequence[str]) -> Iterable[Record]:
        def read(name: str) -> Record | StorageError:
            try:
                return read_record(self._location, name)
            except StorageError as error:
                return error

        with ThreadPoolExecutor(_READERS) as readers:
            for found in readers.map(read, names):
                if isinstance(found, StorageError):
                    self.problems.append(str(found))
                else:
                    yield found


def read_catalog(output: str | Path, storage_options: Mapping[str, Any] | None = None) -> Catalog:
    """Read the catalogue of a batch.

    Args:
        output: The folder or URL of the batch.
        storage_options: Arguments of the fsspec driver.

    Raises:
        InputError: The output does not exist, or has no records.
        StorageError: The output cannot be read.
    """
    return Catalog(output, storage_options)


def _latest(rows: Iterable[Row], where: Mapping[str, str], until: str | None) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in rows:
        versions = json.loads(row["record"]).get("versions", {}) if where else {}
        # A date alone includes its whole day.
        in_time = until is None or row["time"][: len(until)] <= until
        if in_time and all(versions.get(name, "").split("+")[0] == value for name, value in where.items()):
            found[row["job"]] = row
    return found


def _opened(location: Location) -> tuple[Path | None, sqlite3.Connection]:
    """The database of an output: in its folder, or in this user's cache for one on other storage."""
    if location.folder is not None:
        path = location.folder / FILE_NAME
    else:
        name = hashlib.sha256(location.url.encode()).hexdigest()[:16]
        path = user_cache() / "catalogs" / f"{name}.sqlite"
    # A link could lead to a file of other content, which would be changed.
    for _ in range(0 if path.is_symlink() else 2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(path, timeout=30)
            (version,) = database.execute("pragma user_version").fetchone()
            if version in (0, _VERSION):
                _create(database)
                if _is_table(database):
                    return path, database
            database.close()
        except (sqlite3.OperationalError, OSError):
            # Its folder cannot be written, or it is locked.
            break
        except sqlite3.DatabaseError:
            # It is damaged.
            pass
        # Made again from the records.
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    database = sqlite3.connect(":memory:")
    _create(database)
    return None, database


def _create(database: sqlite3.Connection) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    database.execute(f"create table if not exists records ({columns}, primary key (id))")
    database.execute(f"pragma user_version = {_VERSION}")
    database.commit()


def _is_table(database: sqlite3.Connection) -> bool:
    """Whether `records` is the table of `_create`, not one of another program."""
    found = database.execute("select type from sqlite_master where name = 'records' or tbl_name = 'records'").fetchall()
    # SQLite writes the types in capitals since 3.37.
    columns = [(name, kind.lower()) for _, name, kind, *_ in database.execute("pragma table_info(records)")]
    return {kind for (kind,) in found} <= {"table", "index"} and columns == list(COLUMNS.items())


def _has_types(values: Sequence[Any]) -> bool:
    """Whether the values of a row are of the types of their columns, which SQLite does not check."""
    return all(
        isinstance(value, str) if kind == "text" else value is None or isinstance(value, int | float)
        for kind, value in zip(COLUMNS.values(), values, strict=True)
    )


def _row(record: Record) -> Row:
    result = record.result
    steps = {name.partition(":")[0]: step for name, step in result.get("steps", {}).items()}
    verify, validate = steps.get("verify", {}), steps.get("validate", {})
    found = {name: getattr(record, name, None) for name in COLUMNS}
    found |= {name: record.versions.get(name, "") for name in _LIBRARIES}
    found |= {
        "status": record.status.value,
        "failure": "" if record.failure is None else record.failure.value,
        "bytes": sum(file.size for file in record.files if not file.name.startswith("extracted/")) or None,
        "nodes": result.get("node_count"),
        "tries": len(result["attempts"]) if "attempts" in result else None,
        "strategy": result.get("strategy", ""),
        "exporter": result.get("exporter", ""),
        "coverage": result.get("coverage"),
        "checked": result.get("check", {}).get("outcome", ""),
        "verified": verify.get("passed"),
        "validated": validate.get("passed"),
        "worst_excess": verify.get("worst_excess"),
        "record": msgspec.json.encode(record).decode(),
    }
    return found
