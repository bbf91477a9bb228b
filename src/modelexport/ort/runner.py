"""One child process for onnxruntime and the ONNX checker: start, ask, limits of time and memory, crash, restart."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from modelexport.child_process import OUT_OF_MEMORY, signal_name
from modelexport.deadline import deadline_paused
from modelexport.errors import InputError, OnnxRunError, RunLimitError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import worker

_MESSAGE_CHARACTERS = 400
_STDERR_BYTES = 4096
# The stream of an ended process is closed, unless a child of that process keeps it open.
_SECONDS_FOR_STDERR = 5.0
# A file with many endless graphs must not take the time limit once for each.
_MOST_TIMEOUTS = 3
# The process needs numpy for arrays only. OpenBLAS, which numpy's wheels contain, would start a thread for each core on
# import, which takes as much CPU time as the rest of the import.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    # glibc returns large blocks to the system when they are freed. While onnxruntime loads a file it copies the weights
    # several times; with memory that is reused, a file of 440 MB has half the page faults and loads in two thirds of
    # the time. The process ends with its runner, which returns all of it.
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}


# The name of onnxruntime's exception for an operator that it cannot run with these types.
_NO_KERNEL = "NotImplemented"
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


@dataclasses.dataclass(frozen=True)
class FileRun:
    """How loading and running a file went.

    Attributes:
        loaded: Whether onnxruntime loads it.
        problem: Why it rejects it or cannot run it; empty if it could.
        no_kernel: Whether the problem is an operator without a kernel on this machine.
    """

    loaded: bool
    problem: str
    no_kernel: bool


def require_onnxruntime() -> None:
    """Check that onnxruntime is installed, without importing it.

    Raises:
        InputError: It is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise InputError("running an ONNX model needs onnxruntime: pip install 'modelexport[runtime]'")


class Runner:
    """Answers requests in one child process, started at the first request and again after it crashed or timed out.

    A context manager: the process ends with the context, and with this process.

    Args:
        limits: The limits of one request.
        threads: The number of threads of onnxruntime; 0 for its default.
    """

    def __init__(self, limits: RunLimits = DEFAULT_RUN_LIMITS, *, threads: int = 0) -> None:
        self._limits = limits
        self._threads = threads
        self._environment: Mapping[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: _Tail | None = None
        self._deadline: _Deadline | None = None
        self._unread = 0
        self._timeouts = 0
        self._is_ready = False

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def suits(self, limits: RunLimits, threads: int) -> bool:
        """Whether its process answers, and as one that is started now with these arguments would."""
        wanted = (limits, threads, _environment())
        is_usable = self._is_ready and not (self._is_expired() or self._unread or self._timeouts)
        is_running = self._process is not None and self._process.poll() is None
        return is_usable and is_running and (self._limits, self._threads, self._environment) == wanted

    def start(self) -> None:
        """Start the process and let it import onnxruntime meanwhile, without waiting for it."""
        if self._process is None:
            self._spawn("onnxruntime")

    def run(
        self,
        model: Sequence[bytes],
        feeds: Mapping[str, np.ndarray],
        outputs: Sequence[str],
        folder: Path | None = None,
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Run a graph once. Yields its outputs, one at a time, without those that are not numeric tensors.

        Args:
            model: The serialized model, in one or more pieces.
            feeds: Its inputs by name, of the declared types; other names are ignored.
            outputs: The names of the outputs.
            folder: The folder of its external data.

        Raises:
            OnnxRunError: onnxruntime rejected the graph, failed, crashed, timed out or ran out of memory.
            InputError: onnxruntime is not installed, or cannot be started.
        """
        if self._process is None:
            require_onnxruntime()
        header = {
            "folder": str(folder.resolve()) if folder is not None else "",
            "feeds": list(feeds),
            "outputs": list(outputs),
            "threads": self._threads,
            "pieces": len(model),
        }
        pieces = [np.frombuffer(piece, np.uint8) for piece in model]
        answer, arrays = self.ask("run", "onnxruntime", header, [*pieces, *feeds.values()])
        for position, array in zip(answer["outputs"], arrays, strict=True):
            yield outputs[position], array

    def run_file(
        self,
        path: Path,
        feeds: Mapping[str, np.ndarray] | None,
        outputs: Sequence[str],
        *,
        optimized: bool = True,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[FileRun, dict[str, np.ndarray]]:
        """Load a file as its users do, and run it once.

        Args:
            path: The file.
            feeds: Its inputs by name, of the declared types; None to load it only.
            outputs: The names of the outputs.
            optimized: Whether onnxruntime optimizes the graph, as it does by default.
            meanwhile: Called while onnxruntime works. It raises no `Exception`.

        Returns:
            How that went, and the outputs that are numeric tensors.

        Raises:
            RunLimitError: onnxruntime timed out or ran out of memory.
            OnnxRunError: It crashed.
            InputError: onnxruntime is not installed, or cannot be started.
        """
        if self._process is None:
            require_onnxruntime()
        header: dict[str, Any] = {
            "path": str(path.resolve()),
            "feeds": None if feeds is None else list(feeds),
            "outputs": list(outputs),
            "threads": self._threads,
            "optimized": optimized,
        }
        sent = [] if feeds is None else list(feeds.values())
        answer, arrays = self.ask("run_file", "onnxruntime", header, sent, meanwhile)
        # The message begins with a code, and names the file by its full path.
        problem = _CODE.sub("", answer["problem"]).replace(header["path"], path.name)
        if self._is_out_of_memory(problem):
            raise self._error(problem)
        found = FileRun(answer["loaded"], _shortened(problem), answer.get("kind") == _NO_KERNEL)
        return found, {outputs[position]: array for position, array in zip(answer["outputs"], arrays, strict=True)}

    def ask(
        self,
        task: str,
        name: str,
        header: Mapping[str, Any],
        arrays: Sequence[np.ndarray] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[Mapping[str, Any], Iterator[np.ndarray]]:
        """Send a request to the child process.

        Args:
            task: One of the worker's tasks.
            name: The library that does the work, for error messages.
            header: The task's arguments.
            arrays: Its arrays.
            meanwhile: Called after the request is sent; its time does not count. It raises no `Exception`.

        Returns:
            The answer's header, and its arrays as they arrive. The next request discards those that were not read.

        Raises:
            OnnxRunError: The task failed, crashed or timed out.
            InputError: The process cannot be started.
        """
        if self._timeouts >= _MOST_TIMEOUTS:
            raise OnnxRunError(f"skipped: {name} already timed out {self._timeouts} times on this file")
        process = self._started()
        with deadline_paused(), self._failing_as(name, process):
            # If the process answered and ended, the write fails and the answer can still be read.
            with self._timed(), contextlib.suppress(OSError):
                worker.write_message(cast(BinaryIO, process.stdin), {**header, "task": task}, arrays)
            if meanwhile is not None:
                meanwhile()
            with self._timed():
                answer = worker.read_header(cast(BinaryIO, process.stdout))
            self._check_size(answer["arrays"])
        if "not_importable" in answer:
            self._stop()
            require_onnxruntime()
            raise InputError(
                f"{name} is installed but cannot be imported ({answer['not_importable']}): "
                "pip install --force-reinstall 'modelexport[runtime]'"
            )
        if "error" in answer:
            raise self._error(str(answer["error"]))
        self._unread = len(answer["arrays"])
        return answer, self._received(name, process, answer["arrays"])

    def _received(self, name: str, process: subprocess.Popen[bytes], entries: Sequence[Any]) -> Iterator[np.ndarray]:
        for entry in entries:
            # The time that the consumer takes between two arrays does not count.
            with self._failing_as(name, process), self._timed():
                array = worker.read_array(cast(BinaryIO, process.stdout), entry)
            self._unread -= 1
            yield array

    def _check_size(self, entries: Sequence[Any]) -> None:
        """Reject an answer beyond the memory limit: an untrusted process must not fill our memory."""
        sizes = [worker.array_bytes(entry) for entry in entries]
        most = self._limits.memory_bytes
        if any(size < 0 for size in sizes) or (most is not None and sum(sizes) > most):
            raise ValueError("arrays beyond the memory limit")

    @contextlib.contextmanager
    def _failing_as(self, name: str, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Turn the end of the process into our error."""
        try:
            yield
        except (EOFError, OSError) as error:
            raise self._how_it_ended(name, process) from error
        except ValueError as error:
            self._stop()
            raise OnnxRunError(f"the process of {name} sent an invalid answer: {error}") from error
        except BaseException:
            # A message may be incomplete: the process cannot be used any more.
            self._stop()
            raise

    def _timed(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._deadline is None else self._deadline.running()

    def _is_expired(self) -> bool:
        return self._deadline is not None and self._deadline.expired

    def _started(self) -> subprocess.Popen[bytes]:
        # It may have been killed since the last answer, by the time limit or by the system, or it still sends arrays
        # that the consumer did not read.
        if self._process is not None and (self._is_expired() or self._unread or self._process.poll() is not None):
            self._stop()
        if self._process is None:
            self._spawn()
        process = cast(subprocess.Popen[bytes], self._process)
        if not self._is_ready:
            name = "the process for onnxruntime and the ONNX checker"
            try:
                with self._failing_as(name, process), self._timed():
                    worker.read_header(cast(BinaryIO, process.stdout))
            except OnnxRunError as error:
                raise InputError(f"{error}: it cannot be started") from error
            self._is_ready = True
        return process

    def _spawn(self, *preloaded: str) -> None:
        # Started as a script: unlike multiprocessing, that does not import the caller's main module again. It has this
        # process's import path. Ctrl-C reaches only this process, which then stops the child.
        self._environment = _environment()
        memory = self._limits.memory_bytes
        limit = "" if memory is None else str(memory)
        process = subprocess.Popen(
            [sys.executable, "-P", worker.__file__, str(os.getpid()), limit, *preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
        )
        self._process = process
        seconds = self._limits.seconds
        if seconds is not None and seconds <= threading.TIMEOUT_MAX:
            self._deadline = _Deadline(process, seconds)
        self._stderr = _Tail(cast(BinaryIO, process.stderr))
        self._is_ready = False

    def _how_it_ended(self, name: str, process: subprocess.Popen[bytes]) -> OnnxRunError:
        code = process.wait()
        expired, said = self._is_expired(), self._stderr.last_line() if self._stderr is not None else ""
        self._stop()
        if expired:
            self._timeouts += 1
            return RunLimitError(f"{name} timed out after {self._limits.seconds:g} s")
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        return OnnxRunError(_shortened(f"{name} crashed ({how}{'; ' + said if said else ''})"))

    def _is_out_of_memory(self, error: str) -> bool:
        return self._limits.memory_bytes is not None and any(word in error for word in OUT_OF_MEMORY)

    def _error(self, error: str) -> OnnxRunError:
        if not self._is_out_of_memory(error):
            return OnnxRunError(_shortened(error))
        most = (self._limits.memory_bytes or 0) / 2**30
        return RunLimitError(f"onnxruntime ran out of memory, its limit is {most:g} GiB ({_shortened(error)})")

    def _stop(self) -> None:
        process, self._process = self._process, None
        deadline, self._deadline = self._deadline, None
        self._unread = 0
        if deadline is not None:
            deadline.close()
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    cast(BinaryIO, stream).close()
            process.wait()
        stderr, self._stderr = self._stderr, None
        if stderr is not None:
            stderr.close()


def _environment() -> dict[str, str]:
    """The environment of a process that is started now."""
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class _Deadline:
    """Kills the process if a request takes too long.

    One thread watches all requests: starting one for each takes a third of the time of a small request.
    """

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.expired = False
        self._process = process
        self._seconds = seconds
        self._ends: float | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Allow the body this many seconds."""
        # The thread need not be told: it looks again no later than this many seconds from now.
        self._ends = time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._ends = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                ends, now = self._ends, time.monotonic()
                if ends is not None and now >= ends:
                    self.expired = True
                    self._process.kill()
                    return
                self._changed.wait(self._seconds if ends is None else ends - now)


class _Tail:
    """Reads a stream in a thread and keeps its end: the last line of stderr explains why a process ended."""

    def __init__(self, stream: BinaryIO) -> None:
        self._kept = b""
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """The last line, after the process has ended."""
        self._thread.join(_SECONDS_FOR_STDERR)
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Close the stream of a process that has ended."""
        self._thread.join(_SECONDS_FOR_STDERR)
        self._stream.close()

    def _read(self) -> None:
        while piece := os.read(self._stream.fileno(), _STDERR_BYTES):
            self._kept = (self._kept + piece)[-_STDERR_BYTES:]


def _shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}…"
