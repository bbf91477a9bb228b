"""Entries: the files of one finished job under its key, immutable, and visible only when complete."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelexport.errors import StorageError
from modelexport.job_results.locations import Location
from modelexport.job_results.stored_results import StoredFile, check_inside, check_result

ENTRIES = "entries"
_OBJECTS = "objects"
_ONNX = ".onnx"
_DATA = ".data"
_SHORT = 12
_CHUNK = 2**20


class Entry(msgspec.Struct, frozen=True):
    """The result of a job.

    Attributes:
        key: The key of the job.
        folder: The folder of the files, within the location.
        files: The files.
        result: What the job said of them: strategy, attempts, verdicts, times, ...
    """

    key: str
    folder: str
    files: tuple[StoredFile, ...]
    result: dict[str, Any]

    def __post_init__(self) -> None:
        check_inside(self.folder)
        check_result(self.result)

    @property
    def digest(self) -> str:
        """A hash of all files: two entries with the same one have the same content."""
        return content_digest(self.files)


def content_digest(files: Sequence[StoredFile]) -> str:
    """A hash of the names and contents of files."""
    listed = sorted((file.name, file.sha256) for file in files)
    return hashlib.sha256(msgspec.json.encode(listed)).hexdigest()


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def files_in(folder: Path) -> tuple[StoredFile, ...]:
    """The files below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        StoredFile(path.relative_to(folder).as_posix(), path.stat().st_size, hash_file(path)) for path in paths
    )


class EntryStore:
    """Entries in a location.

    The files of an entry are in a folder that is named by their content, so that no writer changes the files of
    another. The entry itself, a small JSON file, is written last and never replaced: of several writers the first wins.

    Args:
        location: Where.
        named: Whether folders also have the name of the job, for people who look at them.
    """

    def __init__(self, location: Location, *, named: bool) -> None:
        self.location = location
        self._named = named

    def list_keys(self) -> set[str]:
        """The keys of all complete entries.

        Raises:
            StorageError: They could not be listed.
        """
        return {name.removesuffix(".json") for name in self.location.names(ENTRIES) if name.endswith(".json")}

    def get(self, key: str) -> Entry | None:
        """The entry with this key, if there is a complete one.

        Raises:
            StorageError: It could not be read.
        """
        try:
            content = self.location.read(_entry_name(key))
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        try:
            return msgspec.json.decode(content, type=Entry)
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{self.location.joined(_entry_name(key))} is damaged ({error}): remove it, and run the job again"
            ) from error

    def put(self, key: str, name: str, folder: Path, result: dict[str, Any]) -> Entry:
        """Store the files of a folder under a key, and return the entry that is then there.

        That is another one if another writer was first. Files that no entry refers to stay: `unused_folders`.

        Raises:
            StorageError: They could not be stored; nothing is visible.
        """
        files = files_in(folder)
        digest = content_digest(files)
        place = f"{name}/{digest[:_SHORT]}" if self._named else f"{_OBJECTS}/{digest}"
        entry = Entry(key, place, files, result)
        # First what a graph refers to, then the graph, then the entry: a reader never finds a part.
        for file in sorted(files, key=_upload_order):
            self.location.upload(folder / file.name, f"{place}/{file.name}")
        if self.location.write(_entry_name(key), msgspec.json.encode(entry), replace=False):
            return entry
        winner = self.get(key)
        if winner is None:
            raise StorageError(f"{self.location.joined(_entry_name(key))} was removed while it was written")
        return winner

    def fetch(self, entry: Entry, folder: Path) -> None:
        """Copy the files of an entry to a folder on this machine, and check them.

        Raises:
            StorageError: A file is missing or damaged.
        """
        for file in entry.files:
            target = folder / file.name
            self.location.download(f"{entry.folder}/{file.name}", target)
            if target.stat().st_size != file.size or hash_file(target) != file.sha256:
                raise StorageError(
                    f"{self.location.joined(f'{entry.folder}/{file.name}')} is damaged: its content is not the one "
                    "that was stored; remove the entry with `modelexport cache prune`, or export again"
                )

    def remove(self, key: str) -> None:
        """Remove an entry; its files stay until nothing refers to them."""
        self.location.remove(_entry_name(key))

    def unused_folders(self) -> dict[str, tuple[int, float]]:
        """Folders of files that no entry refers to, with their sizes and the seconds since they were last written.

        Raises:
            StorageError: They could not be listed.
        """
        used = {entry.folder for key in self.list_keys() if (entry := self.get(key)) is not None}
        found: dict[str, tuple[int, float]] = {}
        for name, size in self.location.sizes(_OBJECTS).items():
            folder = f"{_OBJECTS}/{name.partition('/')[0]}"
            if folder not in used:
                total, age = found.get(folder, (0, math.inf))
                found[folder] = total + size, min(age, self.location.age(f"{_OBJECTS}/{name}"))
        return found

    def remove_folder(self, folder: str) -> None:
        """Remove one of `unused_folders`."""
        self.location.remove(folder)


def _entry_name(key: str) -> str:
    return f"{ENTRIES}/{key}.json"


def _upload_order(file: StoredFile) -> tuple[int, str]:
    kind = 0 if file.name.endswith(_DATA) else 2 if file.name.endswith(_ONNX) else 1
    return kind, file.name
