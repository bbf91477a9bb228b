"""Hashes of files, remembered by size and time of change (weights of gigabytes are read once), and distributions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from modelexport.errors import ModelSourceError
from modelexport.job_results import hash_file

_LARGE = 2**20
# A file that was changed this recently may change again without another time of change.
_SETTLED_NANOSECONDS = 2 * 10**9


class FileHashes:
    """The hashes of files. Those of large files are kept in a database of this user, which may be absent or locked."""

    def __init__(self, database: Path | None) -> None:
        self._known: dict[tuple[str, int, int], str] = {}
        self._database: sqlite3.Connection | None = None
        if database is not None:
            with contextlib.suppress(OSError, sqlite3.Error):
                database.parent.mkdir(parents=True, exist_ok=True)
                self._database = sqlite3.connect(database, timeout=5)
                self._database.execute("create table if not exists hashes (file text primary key, sha256 text)")

    def close(self) -> None:
        """Write what was learned."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.commit()
            self._database.close()
            self._database = None

    def of(self, path: Path) -> str:
        """The SHA-256 of a file.

        Raises:
            ModelSourceError: It cannot be read.
        """
        try:
            about = path.stat()
            identity = (str(path.resolve()), about.st_size, about.st_mtime_ns)
            if identity in self._known:
                return self._known[identity]
            found = self._stored(identity) if about.st_size >= _LARGE else None
            if found is None:
                found = hash_file(path)
                if about.st_size >= _LARGE and _is_settled(about):
                    self._store(identity, found)
        except OSError as error:
            raise ModelSourceError(f"{path} cannot be read: {error.strerror or error}") from error
        self._known[identity] = found
        return found

    def of_all(self, paths: Sequence[Path], root: Path) -> str:
        """One hash of several files and their paths within a folder."""
        listed = [[os.path.relpath(path, root), self.of(path)] for path in paths]
        return hashlib.sha256(msgspec.json.encode(listed)).hexdigest()

    def of_imports(self, names: Iterable[str], root: Path) -> dict[str, str]:
        """The hashes of files, whose paths are relative to a folder, and the versions of distributions (``timm==``).

        Each is empty if it does not exist.
        """
        return {
            name: self._distributions.get(name) or (self.of(root / name) if _is_readable(root / name) else "")
            for name in names
        }

    @functools.cached_property
    def _distributions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in importlib.metadata.distributions():
            # Installed from a folder or repository, the version may stay while the files change.
            files = (one.read_text("RECORD") or "") if one.read_text("direct_url.json") else ""
            content = f" {hashlib.sha256(files.encode()).hexdigest()}" if files else ""
            # The first on the path is the one that is imported.
            found.setdefault(f"{one.name}==", f"{one.version}{content}")
        return found

    def _stored(self, identity: tuple[str, int, int]) -> str | None:
        if self._database is None:
            return None
        with contextlib.suppress(sqlite3.Error):
            for (found,) in self._database.execute("select sha256 from hashes where file = ?", (repr(identity),)):
                return str(found)
        return None

    def _store(self, identity: tuple[str, int, int], sha256: str) -> None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("insert or replace into hashes values (?, ?)", (repr(identity), sha256))


def _is_readable(path: Path) -> bool:
    # Path.is_file raises for names that are too long.
    return os.path.isfile(path) and os.access(path, os.R_OK)  # noqa: PTH113  as above


def _is_settled(about: os.stat_result) -> bool:
    return time.time_ns() - about.st_mtime_ns > _SETTLED_NANOSECONDS
