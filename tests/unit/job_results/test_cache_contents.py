"""What a cache has, and that pruning removes old and unused files and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from modelexport import InputError, cache_information, prune_cache
from modelexport.job_results import EntryStore, Location


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two old entries with the same content, a new one, and files without an entry, old and new."""
    store = EntryStore(Location(tmp_path / "cache"), named=False)
    for key, text in (("1" * 64, "old"), ("2" * 64, "old"), ("3" * 64, "new")):
        folder = tmp_path / key[:2]
        folder.mkdir()
        (folder / "model.onnx").write_text(text, encoding="utf-8")
        store.put(key, "net", folder, {})
    past = time.time() - 10 * 24 * 3600
    for name, when in (("unused", past), ("writing", time.time())):
        path = tmp_path / "cache" / "objects" / name / "model.onnx"
        path.parent.mkdir()
        path.write_text("four", encoding="utf-8")
        os.utime(path, (when, when))
    for key in ("1" * 64, "2" * 64):
        os.utime(tmp_path / "cache" / "entries" / f"{key}.json", (past, past))
    return tmp_path / "cache"


def test_information_counts_entries_files_and_unused_bytes(cache: Path) -> None:
    found = cache_information(cache)
    assert (found.entries, found.files, found.bytes, found.unused_bytes) == (3, 4, 3 + 3 + 4 + 4, 8)


def test_prune_removes_old_entries_and_old_files_without_an_entry(cache: Path) -> None:
    planned = prune_cache(cache, older_than=24 * 3600, dry_run=True)
    assert cache_information(cache).entries == 3
    assert prune_cache(cache, older_than=24 * 3600) == planned
    assert (planned.entries, planned.bytes) == (2, 3 + 4)
    assert EntryStore(Location(cache), named=False).list_keys() == {"3" * 64}
    assert sorted(path.read_text() for path in cache.rglob("model.onnx")) == ["four", "new"]


def test_prune_without_an_age_keeps_every_entry(cache: Path) -> None:
    assert prune_cache(cache).entries == 0
    assert cache_information(cache).entries == 3


def test_file_that_another_entry_has_stays(cache: Path) -> None:
    now = time.time()
    os.utime(cache / "entries" / f"{'2' * 64}.json", (now, now))
    assert prune_cache(cache, older_than=24 * 3600).bytes == 4
    assert "old" in [path.read_text() for path in cache.rglob("model.onnx")]


def test_cache_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        cache_information(tmp_path / "none")
