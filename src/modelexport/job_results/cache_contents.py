"""What a cache of batches has, and the removal of what is old or unused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from modelexport.display import shortened
from modelexport.errors import InputError
from modelexport.hierarchy import json_schema
from modelexport.job_results.entries import ENTRIES, EntryStore
from modelexport.job_results.locations import Location

# Files without an entry may be those of a batch that is writing them.
_GRACE_SECONDS = 24 * 3600.0
_MOST_CHARACTERS = 200


class CacheContents(msgspec.Struct, frozen=True):
    """The size of a cache, or of what was removed from it.

    Attributes:
        entries: How many entries.
        files: How many files they have.
        bytes: The size of the files.
        unused_bytes: The size of files that no entry refers to.
        schema_version: The version of this format.
    """

    entries: int
    files: int
    bytes: int
    unused_bytes: int
    schema_version: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The contents for JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content


def cache_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport cache --format json``."""
    return json_schema("modelexport cache", CacheContents)


def cache_information(cache: str | Path, storage_options: Mapping[str, Any] | None = None) -> CacheContents:
    """What a cache has.

    Raises:
        InputError: There is no cache.
        StorageError: It cannot be read.
    """
    store = _store(cache, storage_options)
    sizes = store.location.sizes("objects")
    unused = sum(size for size, _ in store.unused_folders().values())
    return CacheContents(len(store.list_keys()), len(sizes), sum(sizes.values()), unused)


def prune_cache(
    cache: str | Path,
    *,
    older_than: float | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> CacheContents:
    """Remove old entries, and files that no entry refers to.

    Entries go first, and files only a day after they were written: a batch that runs at the same time loses nothing
    that it has not yet made visible.

    Args:
        cache: The folder or URL.
        older_than: Remove entries that are older, in seconds; None for no entries.
        dry_run: Only say what would be removed.
        storage_options: Arguments of the fsspec driver.

    Returns:
        What was removed.

    Raises:
        InputError: There is no cache, or the age is not a number.
        StorageError: It cannot be read or changed.
    """
    if not isinstance(older_than, int | float | None):
        raise InputError(f"older_than is a number of seconds or None, not {type(older_than).__name__}")
    store = _store(cache, storage_options)
    removed = {
        key
        for key in store.list_keys()
        if older_than is not None and store.location.age(f"{ENTRIES}/{key}.json") > older_than
    }
    kept = {entry.folder for key in store.list_keys() - removed if (entry := store.get(key)) is not None}
    folders = {
        entry.folder: sum(file.size for file in entry.files)
        for key in removed
        if (entry := store.get(key)) is not None and entry.folder not in kept
    }
    folders |= {folder: size for folder, (size, age) in store.unused_folders().items() if age > _GRACE_SECONDS}
    if not dry_run:
        for key in removed:
            store.remove(key)
        for folder in folders:
            store.remove_folder(folder)
    return CacheContents(len(removed), 0, sum(folders.values()), 0)


def _store(cache: str | Path, storage_options: Mapping[str, Any] | None) -> EntryStore:
    location = Location(cache, storage_options)
    # Path.is_dir raises OSError for a path that is too long.
    if location.folder is not None and not os.path.isdir(location.folder):  # noqa: PTH112  as above
        shown = shortened(location.url, _MOST_CHARACTERS)
        raise InputError(f"{shown} is not a folder: give the cache that batches were run with")
    return EntryStore(location, named=False)
