"""Files written whole or not at all: names, targets, commits."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.artifact_sets import (
    as_root,
    at_call,
    contents,
    export,
    failing,
    in_child,
    real_fsync,
    snapshot,
    whole,
)

from modelexport.errors import ContractError, InputError, StorageError
from modelexport.storage import commit_journal
from modelexport.storage.transaction import check_target, data_file_name, sidecar_path, stage_files


def test_names_of_the_files_beside_a_target() -> None:
    assert sidecar_path(Path("/a/model.onnx")) == Path("/a/model_hierarchy.json")
    assert data_file_name(Path("/a/b.c.onnx"), "0123456789abcdef") == "b.c-0123456789ab.onnx.data"
    with pytest.raises(ContractError, match="hexadecimal"):
        data_file_name(Path("model.onnx"), "short")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.pt", "must end in .onnx"),
        ("model", "must end in .onnx"),
        ("", "no file name"),
        (".onnx", "no file name"),
        ("a/..", "no file name"),
        ("mo\0del.onnx", "NUL"),
        ("a\0/model.onnx", "NUL"),
        ("mod\udcffel.onnx", "not valid Unicode"),
        ("m" * 240 + ".onnx", "too long"),
        ("m" * 300 + ".onnx", "too long"),
        ("m" * 300 + "/model.onnx", "too long"),
        ("missing/model.onnx", "Create that folder"),
        ("file/model.onnx", "inside a folder"),
        ("file/sub/model.onnx", "Not a directory"),
        ("loop/model.onnx", "loop|symbolic links"),
        ("folder.onnx", "is a folder"),
        ("link.onnx", "symbolic link.*file itself"),
        ("dangling.onnx", "symbolic link"),
        ("pipe.onnx", "pipe"),
    ],
)
@pytest.mark.parametrize("force", [True, False])
def test_bad_target_is_refused_with_its_name_and_what_to_do(tmp_path: Path, name: str, words: str, force: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "file")
    (tmp_path / "dangling.onnx").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe.onnx")
    before = sorted(tmp_path.iterdir())
    path = tmp_path / name if name else Path()
    with pytest.raises(InputError, match=words) as caught:
        check_target(path, force=force)
    assert str(path)[:200] in str(caught.value) or repr(str(path)) in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_good_target_is_the_real_folder_and_the_name_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert check_target(Path("alias/Modèle 1.ONNX"), force=False) == tmp_path.resolve() / "real" / "Modèle 1.ONNX"
    assert check_target(Path("m" * 220 + ".onnx"), force=False).parent == tmp_path.resolve()
    assert snapshot(tmp_path / "real") == {}


@pytest.mark.parametrize("existing", ["model.onnx", "model_hierarchy.json", "report.md"])
def test_existing_file_is_refused_without_force(tmp_path: Path, existing: str) -> None:
    target, others = tmp_path / "model.onnx", [tmp_path / "report.md"]
    (tmp_path / existing).touch()
    with pytest.raises(InputError, match=rf"{re.escape(existing)}.*exists.*--force"):
        check_target(target, force=False, others=others)
    assert check_target(target, force=True, others=others) == target
    if existing == "model_hierarchy.json":
        assert check_target(target, force=False, sidecar=False) == target


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, number: int) -> None:
    with at_call(1, failing(number), only="os.mkdir"), pytest.raises(InputError) as caught:
        check_target(tmp_path / "model.onnx", force=True)
    assert os.strerror(number) in str(caught.value)
    assert commit_journal._ADVICE[number] in str(caught.value)


@as_root
def test_folder_of_another_user_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)

        def work() -> None:
            os.seteuid(65534)
            with pytest.raises(InputError, match="Get permission"):
                check_target(Path(name, "model.onnx"), force=True)

        assert not in_child(work)


def test_commit_into_an_empty_folder(tmp_path: Path) -> None:
    written = export(tmp_path / "model.onnx", "new", force=False)
    assert {path.name for path in written} == set(snapshot(tmp_path))
    assert written[0] == tmp_path / "model.onnx"
    assert snapshot(tmp_path) | {"model.onnx.data": b"foreign"} == whole("new")


@pytest.mark.parametrize("data", [True, False])
def test_commit_over_an_old_set_removes_only_its_data_files(new_folder: Callable[[], Path], data: bool) -> None:
    folder = new_folder()
    digest = "0" * 12
    kept = ["other-{}.onnx.data", "model-{}.onnx.data.bak", "model-{}0.onnx.data", "model-x-{}.onnx.data"]
    kept += ["xmodel-{}.onnx.data", "model-{}.ONNX.data", "model-11111111111.onnx.data"]
    # what torch writes for a target that happens to look like our data files
    kept += ["model-aaaaaaaaaaaa.onnx", "model-aaaaaaaaaaaa.onnx.data"]
    for name in [*kept, "model-{}.onnx.data"]:
        (folder / name.format(digest)).touch()
    (folder / "model-222222222222.onnx.data").mkdir()
    export(folder / "model.onnx", "new", data=data)
    expected = whole("new", data=data) | {name.format(digest): b"" for name in kept}
    assert snapshot(folder) == expected | {"model-222222222222.onnx.data": None}


def test_commit_of_the_same_weights_again_repairs_the_data_file(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    (folder / str(contents("old")[1])).write_bytes(b"damaged")
    export(folder / "model.onnx", "old")
    assert snapshot(folder) == whole("old")


def test_obsolete_files_go_with_the_old_model(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    target = folder / "model.onnx"
    with stage_files(target) as staging:
        staging.path("m").write_bytes(b"graph")
        obsolete = [sidecar_path(target), target.with_name("model_report.md"), target.with_name("missing")]
        assert staging.commit("m", None, {}, obsolete=obsolete) == (target,)
    assert snapshot(folder) == {"model.onnx": b"graph", "model.onnx.data": b"foreign"}


def test_commit_does_not_replace_what_came_into_being_meanwhile(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    with pytest.raises(InputError, match="exists"):
        export(folder / "model.onnx", "new", force=False)
    assert snapshot(folder) == whole("old")


def test_misuse_is_a_contract_error_and_changes_nothing(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    target = folder / "model.onnx"
    with stage_files(target) as staging:
        for name in ("", ".", "..", "a/b", "/a", "a/", "a\0"):
            with pytest.raises(ContractError, match="bare"):
                staging.path(name)
        staging.path("m").touch()
        for data, others in [("m", {}), (None, {"x": folder.parent / "x"}), (None, {"x": target})]:
            with pytest.raises(ContractError):
                staging.commit("m", data, others)
        with pytest.raises(StorageError, match="missing"):
            staging.commit("m", None, {"missing": folder / "x"})
    assert snapshot(folder) == whole("old")


def test_exception_inside_the_context_leaves_the_old_files(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    for raised, expected in [(OSError(errno.ENOSPC, "full"), StorageError), (ValueError(), ValueError)]:
        with pytest.raises(expected) as caught, stage_files(folder / "model.onnx") as staging:  # noqa: PT012
            staging.path("model.onnx").write_bytes(b"half")
            raise raised
        assert expected is ValueError or "Free some space" in str(caught.value)
        assert snapshot(folder) == whole("old")


@pytest.mark.parametrize("hard_links", [True, False])
def test_everything_is_fsynced_before_the_first_move(
    new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    events: list[str] = []
    replace = os.replace
    folder = new_folder()

    def log_fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        events.append(f"fsync {path.parent.name}/{path.name}")
        real_fsync(handle)

    def log_replace(source: Path, final: Path) -> None:
        events.append(f"move {Path(final).name}")
        replace(source, final)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to name an open file")
    monkeypatch.setattr(os, "fsync", log_fsync)
    monkeypatch.setattr(os, "replace", log_replace)
    if not hard_links:
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    export(folder / "model.onnx", "new")
    moves = [event.removeprefix("move ") for event in events if event.startswith("move")]
    old_data, data = str(contents("old")[1]), str(contents("new")[1])
    assert moves == [data, "model_report.md", "model_hierarchy.json", "model.onnx", old_data]
    before = " ".join(events[: events.index(f"move {data}")])
    files = [f"new/{name}" for name in ("model.onnx", data, "sidecar", "report")]
    if not hard_links:
        files += [f"old/{name}" for name in ("model.onnx", "model_hierarchy.json", "model_report.md")]
    assert [name for name in (*files, "/old", "/commit.json", f"/{folder.name}") if name not in before] == []
    assert events[events.index(f"move {old_data}") + 1].endswith(f"/{folder.name}")
