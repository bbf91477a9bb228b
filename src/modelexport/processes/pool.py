"""Functions in fresh processes, from any thread: each is forked by a server process that has imported the libraries."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from modelexport.errors import InputError
from modelexport.processes import fork_server
from modelexport.processes.outcome import NO_LIMITS, Ending, Outcome, ProcessLimits

_SERVER_ENDED = "the process that starts the jobs ended"


class ProcessPool:
    """Runs functions, each in a fresh process with limits of its own. A context manager.

    The processes are forked from one server process, so that libraries are imported once. The server runs no function
    itself: what a function changes, leaks or breaks is gone with its process. Only on Linux is anything imported before
    the fork: on macOS, libraries do not work after it.

    Args:
        prepare: A function as ``package.module:name`` that the server calls first, to import libraries.
        environment: Variables of the server and of all functions.

    Raises:
        InputError: The system cannot fork processes.
    """

    def __init__(self, prepare: str = "", environment: Mapping[str, str] | None = None) -> None:
        if not hasattr(os, "fork"):
            raise InputError("jobs in processes of their own need fork, which Windows does not have: use WSL")
        self._prepare = prepare if sys.platform == "linux" else ""
        self._environment = dict(environment or {})
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._server: _ServerProcess | None = None
        self._is_stopping = False

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server now, without waiting for it."""
        self._running_server()

    def run(self, function: str, payload: Any, limits: ProcessLimits = NO_LIMITS, log: Path | None = None) -> Outcome:
        """Run a function in a fresh process and wait for it.

        Args:
            function: The function, as ``package.module:name``.
            payload: Its argument, in JSON types.
            limits: The limits of the process.
            log: The file for what it prints; None drops it.
        """
        number = next(self._numbers)
        request = fork_server.Request(number, function, payload, limits, None if log is None else str(log))
        if self._is_stopping:
            return Outcome(Ending.STOPPED, detail="stopped")
        return self._running_server().ask(request).result()

    def stop_all(self) -> None:
        """End all functions that run, and start no other; their outcome is `STOPPED`."""
        self._is_stopping = True
        with self._lock:
            if self._server is not None:
                self._server.stop_all()

    def close(self) -> None:
        """End the server, with all that it runs."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _running_server(self) -> _ServerProcess:
        with self._lock:
            if self._server is None or not self._server.is_alive:
                self._server = _ServerProcess(self._prepare, self._environment)
            return self._server


class _ServerProcess:
    def __init__(self, prepare: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", fork_server.__file__, str(os.getpid()), prepare],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            # Ctrl-C reaches the caller only, who then ends this process.
            start_new_session=True,
        )
        self._waiting: dict[int, Future[Outcome]] = {}
        self._lock = threading.Lock()
        self.is_alive = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, request: fork_server.Request) -> Future[Outcome]:
        """The outcome of a request, when it has ended."""
        future: Future[Outcome] = Future()
        with self._lock:
            if not self.is_alive:
                future.set_result(Outcome(Ending.KILLED, detail=_SERVER_ENDED))
                return future
            self._waiting[request.number] = future
            self._send(request)
        return future

    def stop_all(self) -> None:
        """Stop every request that is not answered."""
        with self._lock:
            for number in list(self._waiting):
                self._send(fork_server.Request(number))

    def close(self) -> None:
        """End the process, and all that it started with it."""
        with self._lock, contextlib.suppress(OSError):
            cast(BinaryIO, self._process.stdin).close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            # It imports libraries, and has started nothing yet; or it is stuck, and what it started ends with it.
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _send(self, request: fork_server.Request) -> None:
        # If it has ended, the reader answers.
        with contextlib.suppress(OSError):
            stream = cast(BinaryIO, self._process.stdin)
            stream.write(msgspec.json.encode(request) + b"\n")
            stream.flush()

    def _read(self) -> None:
        with cast(BinaryIO, self._process.stdout) as answers:
            for line in answers:
                answer = msgspec.json.decode(line, type=fork_server.Answer)
                self._waiting.pop(answer.number).set_result(answer.outcome)
        with self._lock:
            self.is_alive = False
            left, self._waiting = self._waiting, {}
            with contextlib.suppress(OSError):
                cast(BinaryIO, self._process.stdin).close()
        for future in left.values():
            future.set_result(Outcome(Ending.KILLED, detail=_SERVER_ENDED))
        self._process.wait()
