"""Sets of files as exports write them: whole, failing at any call, or killed there."""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import io
import itertools
import multiprocessing
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelexport.errors import StorageError
from modelexport.storage.transaction import data_file_name, roll_back_killed_commit, sidecar_path, stage_files

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
    with stage_files(target, **options) as staging:
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
    """What a folder holds that has just the set ``tag``, and the file of another program."""
    graph, name, weights = contents(tag, data=data)
    files: Snapshot = {"model.onnx": graph, "model_hierarchy.json": b"sidecar " + tag.encode()}
    files |= {"model_report.md": b"report " + tag.encode(), "model.onnx.data": b"foreign"}
    return files | ({name: weights} if name else {})


def check_weights(target: Path) -> None:
    """Checks that the graph has its own weights, for consumers that know nothing of journals."""
    tag = target.read_text(encoding="utf-8").split()[1]
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


def forked(work: Callable[[], object]) -> int:
    """Runs ``work`` in a process of its own, which ends with 0 where it succeeds; returns the process's number."""
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
    return pid


def in_child(work: Callable[[], object]) -> bool:
    """Runs ``work`` in a forked process; returns whether that was killed."""
    _, result = os.waitpid(forked(work), 0)
    assert os.WIFSIGNALED(result) or os.waitstatus_to_exitcode(result) == 0
    return os.WIFSIGNALED(result)


# To fork a process that has imported torch takes longer than all else in these tests; the server has not.
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload([__name__])


def is_killed(work: Callable[..., object], *arguments: object) -> bool:
    """Runs a function of this module in a small process; returns whether that was killed."""
    process = _FORKING.Process(target=_with_quick_fsync, args=(work, *arguments))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _with_quick_fsync(work: Callable[..., object], *arguments: object) -> None:
    os.fsync = lambda handle: None
    work(*arguments)


def killed_export(target: Path, number: int, *, only: str = "") -> bool:
    """Exports in a process that dies before the ``number``-th call; returns whether it got there."""
    return is_killed(_die_exporting, target, number, only)


def _die_exporting(target: Path, number: int, only: str) -> None:
    with at_call(number, die, only=only):
        export(target, "new")


def die_undoing(target: Path, failing_move: str, number: int, hard_links: bool) -> None:
    """Exports; the move to this file fails, and the process dies before the ``number``-th call from there on."""
    if not hard_links:
        os.link = failing(errno.EPERM)
    replace = os.replace

    def fail_then_die(source: Path, final: Path) -> None:
        if failing_move not in str(final):
            return replace(source, final)
        os.replace = replace
        patch.enter_context(at_call(number, die))
        raise OSError(errno.EIO, "broken")

    os.replace = fail_then_die
    with contextlib.ExitStack() as patch, contextlib.suppress(StorageError):
        export(target, "new")


def die_recovering(target: Path, number: int) -> None:
    """Recovers, and dies before the ``number``-th call."""
    with at_call(number, die):
        assert roll_back_killed_commit(target)


def mixed(folder: Path) -> list[Path]:
    """Kills exports into ``folder`` until one leaves a journal and a sidecar that is not the graph's."""
    for number in itertools.count(1):
        work = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-{number}")))
        assert killed_export(work / "model.onnx", number, only="os.replace")
        if (work / "model_hierarchy.json").read_bytes() == b"sidecar new":
            assert (work / "model.onnx").read_bytes() == contents("old")[0]
            return [work / "model.onnx", *work.glob(".modelexport-*")]
    raise AssertionError
