"""A function in a forked process, with limits. Whoever forks should have one thread only."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from modelexport.child_process import OUT_OF_MEMORY, end_with_parent, limit_memory, signal_name
from modelexport.processes.outcome import Ending, Outcome, ProcessLimits, describe_error, is_out_of_memory

_POLL_SECONDS = 0.02
_LOG_BYTES = 4096
# The system sends SIGXCPU at the soft limit, and SIGKILL at the hard one if that was ignored.
_CPU_SECONDS_MORE = 5
_SIGNALS_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT")


class ForkedWork:
    """A function that a forked process runs, from now on.

    Args:
        work: The function. It returns what JSON can hold.
        limits: The limits of the process.
        log: The file for what it prints; None drops it.
        close: File descriptors that it must not keep open.
    """

    def __init__(
        self, work: Callable[[], Any], limits: ProcessLimits, log: Path | None = None, close: Iterable[int] = ()
    ) -> None:
        # Without a name: it goes with the processes, however they end.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  open until the outcome is read
        self._log = log
        self._limits = limits
        self._started = time.monotonic()
        self._ended_by: Ending | None = None
        self._oom_kills = _oom_kills()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run_and_exit(work, self._file.fileno(), limits, log, close, parent)

    def poll(self) -> Outcome | None:
        """What came of it; None while it runs."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            seconds = self._limits.seconds
            if seconds is None or time.monotonic() - self._started < seconds:
                return None
            self._kill(Ending.TIMED_OUT)
            _, status, usage = os.wait4(self._pid, 0)
        # Processes that it started and that do not end with it.
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        return self._outcome(status, usage)

    def wait(self) -> Outcome:
        """The same, when it has ended."""
        while (found := self.poll()) is None:
            time.sleep(_POLL_SECONDS)
        return found

    def stop(self) -> None:
        """End it; the outcome is `STOPPED`."""
        self._kill(Ending.STOPPED)

    def _kill(self, why: Ending) -> None:
        self._ended_by = self._ended_by or why
        # The process leads a group of its own, but only from the moment at which it says so.
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)

    def _outcome(self, status: int, usage: Any) -> Outcome:
        with self._file as file:
            file.seek(0)
            content = file.read()
        found = Outcome(Ending.CRASHED)
        if content and self._ended_by is None:
            with contextlib.suppress(msgspec.DecodeError):
                found = msgspec.json.decode(content, type=Outcome)
        if found.ending is Ending.CRASHED:
            ending, detail = self._how_it_ended(status, usage.ru_utime + usage.ru_stime)
            found = msgspec.structs.replace(found, ending=ending, detail=detail)
        return msgspec.structs.replace(
            found,
            seconds=round(time.monotonic() - self._started, 3),
            cpu_seconds=round(usage.ru_utime + usage.ru_stime, 3),
            peak_memory_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        )

    def _how_it_ended(self, status: int, cpu_seconds: float) -> tuple[Ending, str]:
        if self._ended_by is Ending.TIMED_OUT:
            return Ending.TIMED_OUT, f"timed out after {self._limits.seconds:g} s"
        if self._ended_by is not None:
            return self._ended_by, "stopped"
        if not os.WIFSIGNALED(status):
            return Ending.CRASHED, f"exit code {os.WEXITSTATUS(status)}"
        name = signal_name(os.WTERMSIG(status))
        cpu = self._limits.cpu_seconds
        if cpu is not None and (name == "SIGXCPU" or (name == "SIGKILL" and cpu_seconds >= cpu)):
            return Ending.TIMED_OUT, f"timed out after {cpu} s of CPU time"
        said = _last_bytes(self._log)
        if any(words in said for words in OUT_OF_MEMORY):
            return Ending.OUT_OF_MEMORY, f"out of memory ({name})"
        if name == "SIGKILL" and _oom_kills() > self._oom_kills:
            return Ending.OUT_OF_MEMORY, "out of memory: killed by the system"
        if name in _SIGNALS_FROM_OUTSIDE:
            return Ending.KILLED, f"killed by another process ({name})"
        return Ending.CRASHED, name


def _run_and_exit(
    work: Callable[[], Any], file: int, limits: ProcessLimits, log: Path | None, close: Iterable[int], parent: int
) -> NoReturn:
    """In the process: run the function, write what came of it, end."""
    status = 1
    try:
        end_with_parent(parent)
        os.setsid()
        # Handlers of the process that was forked are not for this one.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in close:
            os.close(descriptor)
        _redirect(log)
        _limit(limits)
        with os.fdopen(os.dup(file), "wb") as written:
            written.write(msgspec.json.encode(_run(work)))
        status = 0
    finally:
        # Nothing of the process that was forked must run again here: no handlers, no buffers.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _run(work: Callable[[], Any]) -> Outcome:
    try:
        # Encoded here, so that a result that is not JSON is an error of the function.
        return Outcome(Ending.RETURNED, msgspec.json.decode(msgspec.json.encode(work())))
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the outcome
        ending = Ending.OUT_OF_MEMORY if is_out_of_memory(error) else Ending.RAISED
        described = describe_error(error, **getattr(error, "outcome_attributes", {}))
        detail = "out of memory" if ending is Ending.OUT_OF_MEMORY else ""
        return Outcome(ending, error=described, detail=detail)


def _redirect(log: Path | None) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    written = nothing if log is None else os.open(log, flags, 0o600)
    for stream, target in ((0, nothing), (1, written), (2, written)):
        os.dup2(target, stream)


def _limit(limits: ProcessLimits) -> None:
    import resource

    limit_memory(limits.memory_bytes)
    if limits.cpu_seconds is not None:
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        most = limits.cpu_seconds + _CPU_SECONDS_MORE
        resource.setrlimit(
            resource.RLIMIT_CPU,
            (limits.cpu_seconds, most if hard == resource.RLIM_INFINITY else min(most, hard)),
        )


def _last_bytes(log: Path | None) -> str:
    if log is None or not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return file.read().decode(errors="replace")


def _oom_kills() -> int:
    """How many processes Linux has killed for lack of memory since it started."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))
