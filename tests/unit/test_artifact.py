"""The files of an export: bad targets are found early, and no failure or kill leaves a mixed set."""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import io
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelexport import artifact
from modelexport.artifact import check_target, data_file_name, recover, sidecar_path, stage
from modelexport.errors import ContractError, InputError, ModelExportError, StorageError

# Every call by which the code changes the disk or opens something on it: the points at which a test lets an
# export fail or die. io.open is what pathlib opens with, builtins.open what shutil copies with.
OS_CALLS = ("replace", "fsync", "link", "open", "mkdir", "unlink", "rmdir")
CALLS = ((os, OS_CALLS), (io, ("open",)), (builtins, ("open",)))
real_fsync = os.fsync
LONG_AGO = 1_000_000_000
Snapshot = dict[str, bytes | None]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def contents(tag: str, *, data: bool = True) -> tuple[bytes, str | None, bytes]:
    """The graph of a set, and the name and content of its data file."""
    weights = f"weights of {tag}".encode() * 50
    name = data_file_name(Path("model.onnx"), hashlib.sha256(weights).hexdigest()) if data else None
    return f"graph {tag} data={name}".encode(), name, weights


def export(target: Path, tag: str, *, data: bool = True, **options: bool) -> tuple[Path, ...]:
    """Writes a whole set, as an export does."""
    graph, name, weights = contents(tag, data=data)
    with stage(target, **options) as staging:
        staging.path(target.name).write_bytes(graph)
        staging.path("sidecar").write_bytes(b"sidecar " + tag.encode())
        staging.path("report").write_bytes(b"report " + tag.encode())
        if name is not None:
            staging.path(name).write_bytes(weights)
        others = {"sidecar": sidecar_path(target), "report": target.with_name("model_report.md")}
        return staging.commit(target.name, name, others)


def snapshot(folder: Path) -> Snapshot:
    """Everything below a folder, hidden or not."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in found}


def whole(tag: str, *, data: bool = True) -> Snapshot:
    """What a folder holds that has just the set ``tag``, and the stranger's files of `old_set`."""
    graph, name, weights = contents(tag, data=data)
    files: Snapshot = {"model.onnx": graph, "model_hierarchy.json": b"sidecar " + tag.encode()}
    files |= {"model_report.md": b"report " + tag.encode(), "model.onnx.data": b"foreign"}
    return files | ({name: weights} if name else {})


def check_weights(target: Path) -> None:
    """Checks what a reader needs that knows nothing of journals: the graph that is there has its own weights."""
    tag = target.read_text().split()[1]
    assert (target.parent / str(contents(tag)[1])).read_bytes() == contents(tag)[2]


def visible(found: Snapshot) -> Snapshot:
    return {name: content for name, content in found.items() if not name.startswith(".modelexport-")}


@contextlib.contextmanager
def at_call(number: int, act: Callable[[str], None], *, only: str = "", onwards: bool = False) -> Iterator[None]:
    """Calls ``act`` before the ``number``-th of the patched calls; ``onwards``: before each from there on."""
    count = itertools.count(1)

    def wrap(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            now = next(count)
            if now == number or (onwards and now > number):
                act(name)
            return original(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, names in CALLS:
            for name in names:
                if only in (f"{module.__name__}.{name}", ""):
                    patch.setattr(module, name, wrap(name, getattr(module, name)))
        yield


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(_: str) -> None:
    raise KeyboardInterrupt


def failing(number: int) -> Callable[[str], None]:
    def fail(name: object, *_: object) -> None:
        raise OSError(number, os.strerror(number), f"<{name}>")

    return fail


def in_child(work: Callable[[], object]) -> bool:
    """Runs ``work`` in a forked process; returns whether that was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on, where a thread is running
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, result = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(result) or os.waitstatus_to_exitcode(result) == 0
    return os.WIFSIGNALED(result)


def killed_export(target: Path, number: int, *, only: str = "") -> bool:
    """Exports in a forked process that dies before the ``number``-th call; returns whether it got there."""

    def work() -> None:
        with at_call(number, die, only=only):
            export(target, "new")

    return in_child(work)


@pytest.fixture(autouse=True)
def _quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one waits for the disk, a hundred times as long as all else, and changes nothing but for a power cut."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def new_folder(tmp_path: Path) -> Callable[[], Path]:
    """Makes folders that hold the set ``old`` and a file of somebody else's."""
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "model.onnx.data").write_bytes(b"foreign")
    for path in export(tmp_path / "template" / "model.onnx", "old"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    count = itertools.count()

    def make() -> Path:
        return Path(shutil.copytree(tmp_path / "template", tmp_path / f"folder{next(count)}"))

    return make


def mixed(folder: Path) -> list[Path]:
    """Kills exports into ``folder`` until one leaves a journal and a sidecar that is not the graph's."""
    for number in itertools.count(1):
        work = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-{number}")))
        assert killed_export(work / "model.onnx", number, only="os.replace")
        if (work / "model_hierarchy.json").read_bytes() == b"sidecar new":
            assert (work / "model.onnx").read_bytes() == contents("old")[0]
            return [work / "model.onnx", *work.glob(".modelexport-*")]
    raise AssertionError


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
        ("missing/model.onnx", "Make that folder"),
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
    assert artifact._ADVICE[number] in str(caught.value)


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
    with stage(target) as staging:
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
    with stage(target) as staging:
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


def test_exception_in_the_body_leaves_the_old_set(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    for raised, expected in [(OSError(errno.ENOSPC, "full"), StorageError), (ValueError(), ValueError)]:
        with pytest.raises(expected) as caught, stage(folder / "model.onnx") as staging:  # noqa: PT012
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
            recover(folder / "model.onnx")
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
            if "Cannot put back" in str(error):
                kept += 1
                assert list(folder.glob(".modelexport-*/commit.json"))
        with stage(folder / "model.onnx"):
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
            recover(folder / "model.onnx")
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
        copy = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-copy")))
        recover(target)
        assert snapshot(folder) in (whole("old"), whole("new"))
        results.append(snapshot(folder) == whole("old"))
        other = Path(shutil.copytree(copy, folder.with_name(f"{folder.name}-other")))
        check_target(copy / "model.onnx", force=True)  # which stages
        assert snapshot(copy) == snapshot(folder)
        # A set may hold several models: whoever reads one of its files puts all of them back.
        recover(other / "model_report.md")
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
        recover(folder / "model.onnx")
        found = snapshot(folder)
        assert not found or found | {"model.onnx.data": b"foreign"} == whole("new")
    assert index > 20


@pytest.mark.parametrize("copied", [True, False], ids=["backups are copies", "backups are hard links"])
def test_kill_while_undoing_is_undone_by_the_next(
    new_folder: Callable[[], Path], tmp_path: Path, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copied:
        monkeypatch.setattr(os, "link", failing(errno.EPERM))
    # the moves before which the export fails: of the sidecar, of the model, of the old data file
    for point in ("model_hierarchy.json", "model.onnx", "old/model"):
        for index in itertools.count(1):
            folder = new_folder()

            def work(folder: Path = folder, point: str = point, index: int = index) -> None:
                replace = os.replace

                def fail_then_die(source: Path, final: Path) -> None:
                    if point not in str(final):
                        return replace(source, final)
                    os.replace = replace
                    patch.enter_context(at_call(index, die))
                    raise OSError(errno.EIO, "broken")

                os.replace = fail_then_die
                with contextlib.ExitStack() as patch, contextlib.suppress(StorageError):
                    export(folder / "model.onnx", "new")

            killed = in_child(work)
            check_weights(folder / "model.onnx")
            recover(folder / "model.onnx")
            assert snapshot(folder) == whole("old")
            if not killed:
                assert index > 4
                break


def test_kill_while_recovering_is_recovered_by_the_next(new_folder: Callable[[], Path]) -> None:
    target, _ = mixed(new_folder())
    for index in itertools.count(1):
        folder = Path(shutil.copytree(target.parent, target.parent.with_name(f"again{index}")))

        def work(folder: Path = folder, index: int = index) -> None:
            with at_call(index, die):
                assert recover(folder / "model.onnx")

        killed = in_child(work)
        assert recover(folder / "model.onnx") or (folder / "model_hierarchy.json").read_bytes() == b"sidecar old"
        assert snapshot(folder) == whole("old")
        if not killed:
            assert index > 5
            return


def test_kill_of_another_run_is_undone_before_a_commit_and_not_after(new_folder: Callable[[], Path]) -> None:
    crashed, temporary = mixed(new_folder())
    folder = new_folder()
    with stage(folder / "model.onnx") as staging:
        staging.path("m").write_bytes(b"graph")
        # the other run dies now, while we have staged and not yet committed
        for path in crashed.parent.iterdir():
            if path != temporary:
                shutil.copy2(path, folder / path.name)
        shutil.copytree(temporary, folder / temporary.name)
        staging.commit("m", None, {})
    expected = whole("old", data=False) | {"model.onnx": b"graph"}
    assert snapshot(folder) == expected
    assert not recover(folder / "model.onnx")
    assert snapshot(folder) == expected


@pytest.mark.parametrize("in_place", [True, False])
def test_file_that_somebody_wrote_after_the_kill_is_kept(new_folder: Callable[[], Path], in_place: bool) -> None:
    target, _ = mixed(new_folder())
    if not in_place:
        target.unlink()
    target.write_bytes(b"somebody's own model")
    assert recover(target)
    assert snapshot(target.parent) == whole("old") | {"model.onnx": b"somebody's own model"}


def test_temporaries_of_other_targets_are_removed_and_their_journals_wait(
    new_folder: Callable[[], Path],
) -> None:
    target, temporary = mixed(new_folder())
    litter = target.with_name(".modelexport-a-b-0123456789abcdef")
    litter.mkdir()
    with stage(target.with_name("other.onnx")):
        pass
    assert not litter.exists()
    assert temporary.exists()
    assert recover(target)
    assert snapshot(target.parent) == whole("old")


def test_temporary_of_a_living_run_and_foreign_names_are_not_swept(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    foreign = {".modelexport-model", ".modelexport-model-12", ".modelexport--0123456789abcdef", ".other"}
    for name in foreign:
        (folder / name).mkdir()
    (folder / ".modelexport-file-0123456789abcdef").touch()
    with stage(folder / "model.onnx") as staging:
        staging.path("m").write_bytes(b"graph")
        export(folder / "model.onnx", "new")
        assert not recover(folder / "model.onnx")
        assert staging.path("m").read_bytes() == b"graph"
    expected = dict.fromkeys(foreign) | {".modelexport-file-0123456789abcdef": b""}
    assert snapshot(folder) == whole("new") | expected


def test_journal_from_a_stranger_reaches_nothing_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "canary").write_bytes(b"canary")
    folder = tmp_path / "folder"
    for index, name in enumerate(["../canary", "canary", "..", "new", "nul\\u0000"]):
        temporary = folder / f".modelexport-model-{index:016x}"
        temporary.mkdir(parents=True)
        (temporary / "old").symlink_to(tmp_path)
        journal = f'["model.onnx",[{{"name":"{name}","old":[1,1],"new":[6,1]}}]]'
        (temporary / "commit.json").write_text(journal)
    (folder / ".modelexport-model-0000000000000009").symlink_to(tmp_path)
    recover(folder / "model.onnx")
    assert (tmp_path / "canary").read_bytes() == b"canary"
    left = {f".modelexport-model-{index:016x}" for index in (0, 4, 9)}
    assert {path.name for path in folder.iterdir()} == left  # ours have no such names in them


def test_journal_cut_short_means_that_nothing_was_moved(new_folder: Callable[[], Path]) -> None:
    folder = new_folder()
    temporary = folder / ".modelexport-model-0123456789abcdef"
    temporary.mkdir()
    (temporary / "commit.json").write_text('["model.onnx",[{"name":"model.onnx","old":[1,1],')
    recover(folder / "model.onnx")
    assert snapshot(folder) == whole("old")


@as_root
def test_temporary_of_another_user_is_not_swept(new_folder: Callable[[], Path]) -> None:
    temporary = new_folder() / ".modelexport-model-0123456789abcdef"
    temporary.mkdir()
    os.chown(temporary, 65534, 65534)
    with stage(temporary.with_name("model.onnx")):
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
    with stage(tmp_path / "model.onnx"):
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

    monkeypatch.setattr(artifact, "_PATIENCE_S", 0.2)
    assert not in_child(work)


def test_recover_without_anything_to_do(tmp_path: Path, new_folder: Callable[[], Path]) -> None:
    assert not recover(tmp_path / "missing" / "model.onnx")
    assert not recover(new_folder() / "model.onnx")


def test_two_processes_that_export_to_one_target_take_turns(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    export(target, "start")

    def many(name: str) -> None:
        for number in range(25):
            export(target, f"{name}{number}", data=number % 3 != 2)

    def reader() -> None:
        while not (tmp_path / "stop").exists():
            recover(target)
            tag = target.read_text().split()[1]
            with contextlib.suppress(FileNotFoundError):  # an old graph whose weights are gone by now
                assert (tmp_path / str(contents(tag)[1])).read_bytes() == contents(tag)[2]

    def both() -> None:
        pids = []
        for work in (lambda: many("a"), lambda: many("b"), reader):
            pids.append(pid := os.fork())
            if pid == 0:
                status = 1
                try:
                    work()
                    status = 0
                finally:
                    os._exit(status)
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
    monkeypatch.setattr(artifact, "_PATIENCE_S", 0.05)
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
    monkeypatch.setattr(artifact, "flock", unsupported)
    export(folder / "model.onnx", "new")
    assert snapshot(folder) == whole("new")
    assert not recover(target)
    assert temporary.exists()


def test_module_works_without_fcntl(new_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("artifact_without_fcntl", str(artifact.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    target = new_folder() / "model.onnx"
    with module.stage(target) as staging:
        staging.path("m").write_bytes(b"graph")
        staging.commit("m", None, {})
    assert not module.recover(target)
    assert snapshot(target.parent) == whole("old", data=False) | {"model.onnx": b"graph"}


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
    with pytest.raises(StorageError, match=r"No space left.*Free some space"), stage(target) as staging:
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
