"""Writes that fail, are interrupted or killed at any call, and full disks: a whole set is left."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.artifact_sets import (
    CALLS,
    LONG_AGO,
    at_call,
    check_weights,
    die_recovering,
    die_undoing,
    export,
    failing,
    interrupt,
    is_killed,
    killed_export,
    mixed,
    snapshot,
    visible,
    whole,
)

from modelexport.errors import InputError, ModelExportError, StorageError
from modelexport.storage.transaction import check_target, roll_back_killed_commit, stage_files


@pytest.mark.parametrize(("number", "hard_links"), [(errno.ENOSPC, True), (errno.EIO, False)])
@pytest.mark.parametrize("only", [f"{module.__name__}.{name}" for module, names in CALLS for name in names])
def test_failure_of_any_call_leaves_the_old_set(
    new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, only: str, number: int, hard_links: bool
) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    for index in itertools.count(1):
        folder = new_folder()
        reached: list[str] = []

        def fail(name: str, reached: list[str] = reached) -> None:
            reached.append(name)
            failing(number)(name)

        try:
            with at_call(index, fail, only=only):
                export(folder / "model.onnx", "new")
        except StorageError as error:
            assert os.strerror(number) in str(error)  # noqa: PT017 - success is possible too
            assert isinstance(error.__cause__, OSError)  # noqa: PT017
            expected = whole("old")
            assert (folder / "model.onnx").stat().st_mtime == LONG_AGO
        else:
            expected = whole("new")
        assert visible(snapshot(folder)) == expected
        if only in {
            "os.open",
            "os.unlink",
            "os.rmdir",
        }:  # these may have failed to remove the temporary folder
            roll_back_killed_commit(folder / "model.onnx")
        assert snapshot(folder) == expected
        if not reached:
            assert index > 1 or only in {"os.link", "builtins.open"}
            return


@pytest.mark.parametrize("only", ["", "os.replace"], ids=["of everything", "of moves"])
def test_failure_that_lasts_keeps_what_is_needed_to_put_the_old_set_back(
    new_folder: Callable[[], Path], only: str
) -> None:
    kept = 0
    for index in itertools.count(1):
        folder = new_folder()
        try:
            with at_call(index, failing(errno.EIO), only=only, onwards=True):
                export(folder / "model.onnx", "new")
        except ModelExportError as error:
            if "Cannot restore" in str(error):
                kept += 1
                assert list(folder.glob(".modelexport-*/commit.json"))
        with stage_files(folder / "model.onnx"):
            pass
        assert snapshot(folder) in (whole("old"), whole("new"))
        if snapshot(folder) == whole("new"):
            break
    assert kept > 3


def test_interrupt_at_any_call_leaves_a_whole_set(new_folder: Callable[[], Path]) -> None:
    results = []
    for index in itertools.count(1):
        folder = new_folder()
        try:
            with at_call(index, interrupt):
                export(folder / "model.onnx", "new")
        except KeyboardInterrupt:
            found = visible(snapshot(folder))
            assert found in (whole("old"), whole("new"))
            results.append(found == whole("old"))
            roll_back_killed_commit(folder / "model.onnx")
            assert snapshot(folder) == found
        else:
            break
    # Old up to the removal of the journal, new from there on.
    assert results == sorted(results, reverse=True)
    assert sum(results) > 20


def test_kill_at_any_call_leaves_a_whole_set(new_folder: Callable[[], Path]) -> None:
    results = []
    for index in itertools.count(1):
        folder = new_folder()
        target = folder / "model.onnx"
        if not killed_export(target, index):
            break
        check_weights(target)
        copy, other = new_folder(), new_folder()
        for another in (copy, other):
            assert killed_export(another / "model.onnx", index)
        roll_back_killed_commit(target)
        assert snapshot(folder) in (whole("old"), whole("new"))
        results.append(snapshot(folder) == whole("old"))
        check_target(copy / "model.onnx", force=True)  # which stages
        assert snapshot(copy) == snapshot(folder)
        # A set may hold several models: whoever reads one of its files puts all of them back.
        roll_back_killed_commit(other / "model_report.md")
        assert visible(snapshot(other)) == snapshot(folder)
    assert snapshot(folder) == whole("new")
    assert results == sorted(results, reverse=True)
    assert sum(results) > 20


def test_kill_of_a_first_export_leaves_nothing_or_all(tmp_path: Path) -> None:
    for index in itertools.count(1):
        folder = tmp_path / str(index)
        folder.mkdir()
        if not killed_export(folder / "model.onnx", index):
            break
        roll_back_killed_commit(folder / "model.onnx")
        found = snapshot(folder)
        assert not found or found | {"model.onnx.data": b"foreign"} == whole("new")
    assert index > 20


@pytest.mark.parametrize("copied", [True, False], ids=["backups are copies", "backups are hard links"])
def test_kill_while_undoing_is_undone_by_the_next(new_folder: Callable[[], Path], copied: bool) -> None:
    # the moves before which the export fails: of the sidecar, of the model, of the old data file
    for point in ("model_hierarchy.json", "model.onnx", "old/model"):
        for index in itertools.count(1):
            folder = new_folder()
            killed = is_killed(die_undoing, folder / "model.onnx", point, index, not copied)
            check_weights(folder / "model.onnx")
            roll_back_killed_commit(folder / "model.onnx")
            assert snapshot(folder) == whole("old")
            if not killed:
                assert index > 4
                break


def test_kill_while_recovering_is_recovered_by_the_next(new_folder: Callable[[], Path]) -> None:
    for index in itertools.count(1):
        folder = mixed(new_folder())[0].parent
        killed = is_killed(die_recovering, folder / "model.onnx", index)
        assert (
            roll_back_killed_commit(folder / "model.onnx")
            or (folder / "model_hierarchy.json").read_bytes() == b"sidecar old"
        )
        assert snapshot(folder) == whole("old")
        if not killed:
            assert index > 5
            return


def test_kill_of_another_run_is_undone_before_a_commit_and_not_after(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    with stage_files(folder / "model.onnx") as staging:
        staging.path("m").write_bytes(b"graph")
        # the other run dies now, while we have staged and not yet committed
        assert killed_export(folder / "model.onnx", 4, only="os.replace")
        assert (folder / "model_hierarchy.json").read_bytes() == b"sidecar new"
        staging.commit("m", None, {})
    expected = whole("old", data=False) | {"model.onnx": b"graph"}
    assert snapshot(folder) == expected
    assert not roll_back_killed_commit(folder / "model.onnx")
    assert snapshot(folder) == expected


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_leaves_the_old_set(small_disk: Path) -> None:
    target = small_disk / "model.onnx"
    (small_disk / "model.onnx.data").write_bytes(b"foreign")
    export(target, "old")
    with pytest.raises(StorageError, match=r"No space left.*Free some space"), stage_files(target) as staging:
        staging.path("model.onnx").write_bytes(bytes(2 << 20))
    assert snapshot(small_disk) == whole("old")
    failures = 0
    for room in range(0, 15 * 4096, 4096):  # full from the first page on, to full just after the last
        filler = small_disk / "filler"
        filler.touch()
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        filler.write_bytes(bytes(max(0, free - room)))
        try:
            export(target, "new")
        except StorageError:
            failures += 1
            filler.unlink()
            assert snapshot(small_disk) == whole("old")
    filler.unlink()
    assert snapshot(small_disk) == whole("new")
    assert failures > 2


def test_read_only_disk_is_refused(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(InputError, match="not read-only"):
        check_target(small_disk / "model.onnx", force=True)
