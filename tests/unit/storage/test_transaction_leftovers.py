"""What killed exports left, and exports that meet: swept, undone, one after the other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.artifact_sets import as_root, contents, export, forked, in_child, mixed, snapshot, visible, whole

from modelexport.errors import FileFormatError, StorageError
from modelexport.storage import commit_journal, read_model, transaction
from modelexport.storage.commit_journal import roll_back_killed_commit
from modelexport.storage.transaction import stage_files


@pytest.mark.parametrize("in_place", [True, False])
def test_file_that_another_program_wrote_after_the_kill_is_kept(new_folder: Callable[[], Path], in_place: bool) -> None:
    target, _ = mixed(new_folder())
    if not in_place:
        target.unlink()
    target.write_bytes(b"somebody's own model")
    assert roll_back_killed_commit(target)
    assert snapshot(target.parent) == whole("old") | {"model.onnx": b"somebody's own model"}


def test_temporaries_of_other_targets_are_removed_and_their_journals_wait(
    new_folder: Callable[[], Path],
) -> None:
    target, temporary = mixed(new_folder())
    litter = target.with_name(".modelexport-a-b-0123456789abcdef")
    litter.mkdir()
    with stage_files(target.with_name("other.onnx")):
        pass
    assert not litter.exists()
    assert temporary.exists()
    assert roll_back_killed_commit(target)
    assert snapshot(target.parent) == whole("old")


def test_temporary_of_a_living_run_and_foreign_names_are_not_swept(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    foreign = {".modelexport-model", ".modelexport-model-12", ".modelexport--0123456789abcdef", ".other"}
    for name in foreign:
        (folder / name).mkdir()
    (folder / ".modelexport-file-0123456789abcdef").touch()
    with stage_files(folder / "model.onnx") as staging:
        staging.path("m").write_bytes(b"graph")
        export(folder / "model.onnx", "new")
        assert not roll_back_killed_commit(folder / "model.onnx")
        assert staging.path("m").read_bytes() == b"graph"
    expected = dict.fromkeys(foreign) | {".modelexport-file-0123456789abcdef": b""}
    assert snapshot(folder) == whole("new") | expected


def test_untrusted_journal_reaches_nothing_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "canary").write_bytes(b"canary")
    folder = tmp_path / "folder"
    for index, name in enumerate(["../canary", "canary", "..", "new", "nul\\u0000"]):
        temporary = folder / f".modelexport-model-{index:016x}"
        temporary.mkdir(parents=True)
        (temporary / "old").symlink_to(tmp_path)
        journal = f'["model.onnx",[1,1],[{{"name":"{name}","old":[1,1],"new":[6,1]}}]]'
        (temporary / "commit.json").write_text(journal)
    (folder / ".modelexport-model-0000000000000009").symlink_to(tmp_path)
    roll_back_killed_commit(folder / "model.onnx")
    assert (tmp_path / "canary").read_bytes() == b"canary"
    left = {f".modelexport-model-{index:016x}" for index in (0, 1, 2, 3, 4, 9)}
    assert {path.name for path in folder.iterdir()} == left


def test_journal_that_was_planted_removes_no_file_and_blocks_no_export(new_folder: Callable[[], Path]) -> None:
    """As an archive can contain it, with the size and time of a file that is there."""
    folder = new_folder()
    target = folder / "model.onnx"
    status = target.stat()
    for index, name in enumerate(["model.onnx", "..", "."]):
        temporary = folder / f".modelexport-model-{index:016x}"
        temporary.mkdir()
        (temporary / "lock").touch()
        signature = f"[{status.st_size},{status.st_mtime_ns}]"
        # The inode can be guessed; the time in nanoseconds cannot.
        origin = f"[{(temporary / 'lock').stat().st_ino},{status.st_mtime_ns}]"
        journal = f'["model.onnx",{origin},[{{"name":"{name}","old":null,"new":{signature}}}]]'
        (temporary / "commit.json").write_text(journal)
    assert not roll_back_killed_commit(target)
    assert visible(snapshot(folder)) == whole("old")
    export(target, "new")
    assert visible(snapshot(folder)) == whole("new")


def test_journal_of_a_folder_that_was_copied_is_left_alone(new_folder: Callable[[], Path]) -> None:
    target, temporary = mixed(new_folder())
    copy = Path(shutil.copytree(target.parent, target.parent.with_name("copy")))
    assert not roll_back_killed_commit(copy / "model.onnx")
    assert (copy / temporary.name / "commit.json").is_file()


def test_killed_commit_is_rolled_back_before_a_file_is_opened(new_folder: Callable[[], Path]) -> None:
    target, _ = mixed(new_folder())
    with pytest.raises(FileFormatError):  # the graphs of these sets are text
        read_model(target)
    assert snapshot(target.parent) == whole("old")


def test_journal_cut_short_means_that_nothing_was_moved(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    temporary = folder / ".modelexport-model-0123456789abcdef"
    temporary.mkdir()
    (temporary / "commit.json").write_text('["model.onnx",[1,1],[{"name":"model.onnx","old":[1,1],')
    roll_back_killed_commit(folder / "model.onnx")
    assert snapshot(folder) == whole("old")


def test_journal_that_is_not_text_is_left_alone_and_blocks_no_export(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    temporary = folder / ".modelexport-model-0123456789abcdef"
    temporary.mkdir()
    (temporary / "commit.json").write_bytes(b'["model\xed\xa0\x80.onnx",[1,1],[]]')
    assert not roll_back_killed_commit(folder / "model.onnx")
    assert (temporary / "commit.json").is_file()
    export(folder / "model.onnx", "new")
    assert visible(snapshot(folder)) == whole("new")


@as_root
def test_temporary_of_another_user_is_not_swept(new_folder: Callable[[], Path]) -> None:
    temporary = new_folder() / ".modelexport-model-0123456789abcdef"
    temporary.mkdir()
    os.chown(temporary, 65534, 65534)
    with stage_files(temporary.with_name("model.onnx")):
        pass
    assert temporary.is_dir()


def test_temporary_folder_is_made_with_the_folder_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a sweep takes a folder that has no lock of its own yet for abandoned."""
    mkdir = os.mkdir
    handle = os.open(tmp_path, os.O_RDONLY)

    def checked_mkdir(*args: object, **kwargs: object) -> None:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mkdir(*args, **kwargs)

    monkeypatch.setattr(os, "mkdir", checked_mkdir)
    with stage_files(tmp_path / "model.onnx"):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and not for longer
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def test_lock_does_not_outlive_the_commit_in_a_child_forked_meanwhile(
    new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        children: list[int] = []
        replace = os.replace

        def fork_and_replace(source: Path, final: Path) -> None:
            if not children:
                children.append(os.fork())
                if children == [0]:
                    signal.pause()
            replace(source, final)

        folder = new_folder()
        os.replace = fork_and_replace
        try:
            export(folder / "model.onnx", "first")
            export(folder / "model.onnx", "new")
            assert snapshot(folder) == whole("new")
        finally:
            os.kill(children[0], signal.SIGKILL)

    monkeypatch.setattr(commit_journal, "_PATIENCE_S", 0.2)
    assert not in_child(work)


def test_recover_without_anything_to_do(tmp_path: Path, new_folder: Callable[[], Path]) -> None:
    assert not roll_back_killed_commit(tmp_path / "missing" / "model.onnx")
    assert not roll_back_killed_commit(new_folder() / "model.onnx")


def test_two_processes_that_export_to_one_target_take_turns(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    export(target, "start")

    def many(name: str) -> None:
        for number in range(25):
            export(target, f"{name}{number}", data=number % 3 != 2)

    def reader() -> None:
        while not (tmp_path / "stop").exists():
            roll_back_killed_commit(target)
            tag = target.read_text().split()[1]
            with contextlib.suppress(FileNotFoundError):  # an old graph whose weights are gone by now
                assert (tmp_path / str(contents(tag)[1])).read_bytes() == contents(tag)[2]

    def both() -> None:
        pids = [forked(work) for work in (lambda: many("a"), lambda: many("b"), reader)]
        results = [os.waitpid(pid, 0)[1] for pid in pids[:2]]
        (tmp_path / "stop").touch()
        assert [*results, os.waitpid(pids[2], 0)[1]] == [0, 0, 0]

    assert not in_child(both)
    (tmp_path / "stop").unlink()
    tag = target.read_text().split()[1]
    assert tag in ("a24", "b24")
    assert snapshot(tmp_path) | {"model.onnx.data": b"foreign"} == whole(tag)


def test_folder_that_stays_locked_is_an_error_and_not_a_hang(
    new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_folder()
    monkeypatch.setattr(commit_journal, "_PATIENCE_S", 0.05)
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match="locked"):
        export(folder / "model.onnx", "new")
    os.close(handle)
    assert snapshot(folder) == whole("old")


def test_export_works_where_nothing_can_be_locked(
    new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(handle: int, operation: int) -> None:
        raise OSError(errno.EBADF, "no locks here")

    target, temporary = mixed(new_folder())
    folder = new_folder()
    monkeypatch.setattr(commit_journal, "flock", unsupported)
    export(folder / "model.onnx", "new")
    assert snapshot(folder) == whole("new")
    assert not roll_back_killed_commit(target)
    assert temporary.exists()


def test_transaction_works_without_fcntl(new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    for name in (commit_journal.__name__, transaction.__name__):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    target = new_folder() / "model.onnx"
    with module.stage_files(target) as staging:
        staging.path("m").write_bytes(b"graph")
        staging.commit("m", None, {})
    assert not module.roll_back_killed_commit(target)
    assert snapshot(target.parent) == whole("old", data=False) | {"model.onnx": b"graph"}
