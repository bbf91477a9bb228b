"""Runs one reader on one case under watch: its time, its memory, what it opens, what it runs, what it raises."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import resource
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import modelexport
from modelexport.errors import ContractError, ModelExportError
from tests.fuzz.nasty import CANARY

# No hang over 10 s, of this process's own time: the machine may do other things. Waiting for a pipe takes none.
CPU_SECONDS = 10
WALL_SECONDS = 60
# At most 512 MB and ten times the file.
MEMORY_BYTES = 512 * 2**20
MEMORY_FOR_A_BYTE = 10

# Where code and its data are: reading there is how Python imports.
_CODE_ROOTS = tuple(
    os.path.realpath(path)
    for path in {
        *sysconfig.get_paths().values(),
        sys.prefix,
        sys.base_prefix,
        str(Path(modelexport.__file__).parents[1]),
        str(Path(__file__).parents[2]),
    }
)
_SYSTEM = ("/dev/urandom", "/proc/self/", "/proc/meminfo", "/sys/", "/etc/localtime", "/usr/share/zoneinfo")
_WRITES = {
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
}
# Our own, with limits of their own.
_OWN_PROCESSES = ("ort/worker.py",)
_RUNS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "pickle.find_class",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "ctypes.dlopen",
    "webbrowser.open",
    "urllib.Request",
}


class TooSlowError(BaseException):
    """Not an Exception: nothing that a reader catches may hide it."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """What must not happen, and did."""

    reader: str
    problem: str
    detail: str


@dataclasses.dataclass
class Watch:
    """Looks over a reader's shoulder. One for a process: what it hears cannot be unheard."""

    allowed: tuple[str, ...] = ()
    seen: list[str] = dataclasses.field(default_factory=list)
    active: bool = False
    installed: bool = False

    def install(self) -> None:
        """Hear of everything that this process opens and runs from now on."""
        if not self.installed:
            sys.addaudithook(self._hear)
            self.installed = True

    @contextlib.contextmanager
    def over(self, *folders: Path) -> Iterator[list[str]]:
        """Within, only what lies in these folders may be opened, and nothing may be run."""
        self.allowed = tuple(os.path.realpath(folder) for folder in folders)
        self.seen = []
        self.active = True
        try:
            yield self.seen
        finally:
            self.active = False

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, _, flags = args
            self._look(event, path, writes=bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
        elif event in _WRITES:
            # Paths come first, then for each the folder it is relative to, -1 for none; other numbers are no folders.
            paths = [arg for arg in args if isinstance(arg, str | bytes | os.PathLike)]
            folders = args[len(paths) :] if event not in ("os.truncate", "os.chmod", "os.chown") else args[-1:]
            for path, folder in itertools.zip_longest(paths, folders, fillvalue=-1):
                if isinstance(path, str | bytes | os.PathLike):
                    above = f"/proc/self/fd/{folder}" if isinstance(folder, int) and folder >= 0 else ""
                    self._look(event, Path(above, os.fsdecode(path)), writes=True)
        elif event in _RUNS:
            if not any(name in repr(args) for name in _OWN_PROCESSES):
                self.seen.append(f"{event}{args!r:.200}")
        elif event == "exec" and isinstance(args[0], CodeType):
            name = args[0].co_filename
            if not name.startswith("<") and not os.path.realpath(name).startswith(_CODE_ROOTS):
                self.seen.append(f"{event} {name}")

    def _look(self, event: str, path: Any, *, writes: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        try:
            real = os.path.realpath(os.fsdecode(path))
        except (OSError, ValueError):
            return
        if real.startswith(self.allowed) or real == "/dev/null":
            return
        if not writes and real.startswith((*_CODE_ROOTS, *_SYSTEM)):
            return
        self.seen.append(f"{event} {real}{' for writing' if writes else ''}")


def watched(
    reader: str, work: Callable[[], str], watch: Watch, folders: tuple[Path, ...], size: int
) -> tuple[Failure | None, bool]:
    """Run a reader. Gives None where it came to a result or an error of ours and did nothing else; and which of them.

    Args:
        reader: Its name.
        work: Reads, and gives what it has to say as text.
        watch: The process's.
        folders: What it may open.
        size: The bytes of the case.
    """
    problem = detail = ""
    said, refused = "", False
    began = time.process_time()
    with _limited(size), watch.over(*folders) as seen:
        try:
            said = work()
        except ContractError as error:
            problem, detail = "ContractError: a bug of ours", str(error)
        except ModelExportError as error:
            said, refused = str(error), True
        except TooSlowError:
            problem, detail = f"over {CPU_SECONDS} s", _where()
        except MemoryError:
            problem, detail = "over 512 MB and 10 times the file", _where()
        except Exception as error:  # noqa: BLE001  everything else is what we look for
            problem, detail = f"{type(error).__name__}: {error}"[:300], _where()
    if not problem and time.process_time() - began > CPU_SECONDS:
        problem = f"over {CPU_SECONDS} s"
    if not problem and seen:
        problem, detail = "opened or ran what it may not", "; ".join(seen[:4])
    if not problem and CANARY.decode() in said:
        problem, detail = "told what is outside the folder", said[:200]
    return (Failure(reader, problem, detail) if problem else None), refused


def _where() -> str:
    """The last frames of ours in the traceback of the error that is being handled."""
    error = sys.exc_info()[1]
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    ours = [frame for frame in frames if "/src/modelexport/" in frame.filename] or frames
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(ours[-4:]))


@contextlib.contextmanager
def _limited(size: int) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MEMORY_BYTES + MEMORY_FOR_A_BYTE * size, hard))
    handlers = [(which, signal.signal(which, end)) for which in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    # A test has a clock of its own, which must go on.
    began, (left, _) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.1) if left else 0)
        for which, handler in handlers:
            signal.signal(which, handler)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """What this process has in private memory now; the limit counts from there."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  one small read, ten thousand times
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
