"""Work in a process of its own with limits on time and memory; its death is an outcome like others.

Processes are forked, so that the libraries are imported once, and a model that was built is there for each step.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A process that waits for something that never comes takes no CPU time.
_WALL_PER_CPU = 5
_POLL_SECONDS = 0.02


class Running:
    """A piece of work that a forked process does."""

    def __init__(self, work: Callable[[], Any], cpu_seconds: int, memory_bytes: int) -> None:
        handle, name = tempfile.mkstemp(prefix="modelexport-sweep-")
        os.close(handle)
        self._file = Path(name)
        self._ends = time.monotonic() + _WALL_PER_CPU * cpu_seconds
        self._limit = cpu_seconds
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _do(work, self._file, cpu_seconds, memory_bytes)

    def poll(self) -> dict[str, Any] | None:
        """What came of it: a ``value`` or an ``error``, and ``cpu`` seconds; None while it runs."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() < self._ends:
                return None
            os.kill(self._pid, signal.SIGKILL)
            _, status, usage = os.wait4(self._pid, 0)
        return self._outcome(status, usage.ru_utime + usage.ru_stime)

    def wait(self) -> dict[str, Any]:
        """The same, when it has ended."""
        while (found := self.poll()) is None:
            time.sleep(_POLL_SECONDS)
        return found

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._file.unlink(missing_ok=True)

    def _outcome(self, status: int, cpu: float) -> dict[str, Any]:
        text = self._file.read_text()
        self._file.unlink(missing_ok=True)
        found: dict[str, Any] = json.loads(text) if text else {}
        if not found:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            if number in (signal.SIGXCPU, signal.SIGKILL):
                found = {"error": f"TimeLimit: timed out after {self._limit} s of CPU time"}
            else:
                how = f"signal {signal.Signals(number).name}" if number else f"status {os.WEXITSTATUS(status)}"
                found = {"error": f"ProcessDied: {how}"}
        return {**found, "cpu": round(cpu, 2)}


def run_limited(work: Callable[[], Any], cpu_seconds: int, memory_bytes: int) -> dict[str, Any]:
    """What `work` returns, which must be JSON, or how it failed, after it has ended in a process of its own."""
    return Running(work, cpu_seconds, memory_bytes).wait()


def _do(work: Callable[[], Any], file: Path, cpu_seconds: int, memory_bytes: int) -> None:
    """In the process: the work, with nothing printed."""
    status = 1
    try:
        # Whoever started it may be killed: it must not be left behind.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        try:
            found = {"value": work()}
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the outcome
            found = {"error": describe(error), "trace": traceback.format_exc()[-3000:]}
        file.write_text(json.dumps(found), encoding="utf-8")
        status = 0
    finally:
        # Nothing of the process that was forked must run again here: no handlers, no buffers.
        os._exit(status)


def describe(error: BaseException) -> str:
    """One line: the kind of the error and what it says, with that of the innermost cause behind it."""
    innermost = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    text = f"{type(error).__name__}: {_line(error)}"
    if innermost is not error:
        text += f" << {type(innermost).__name__}: {_line(innermost)}"
    return text[:4000]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:1800]
