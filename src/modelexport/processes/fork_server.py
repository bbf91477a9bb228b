"""The process that forks a child for each function of `pool`. It imports libraries once, and runs nothing itself.

Started as a script. Requests are lines of JSON on stdin, answers lines of JSON on stdout. It ends with its parent, and
its children end with it.
"""

from __future__ import annotations

import functools
import importlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from modelexport.child_process import end_with_parent
from modelexport.processes.forked_work import ForkedWork
from modelexport.processes.outcome import NO_LIMITS, Outcome, ProcessLimits

_POLL_SECONDS = 0.05
_READ_BYTES = 2**16


class Request(msgspec.Struct):
    """Run a function, or (without one) stop the one with this number.

    Attributes:
        number: The number of the request.
        function: The function, as ``package.module:name``; it takes the payload.
        payload: Its argument.
        limits: The limits of its process.
        log: The file for what it prints.
    """

    number: int
    function: str = ""
    payload: Any = None
    limits: ProcessLimits = NO_LIMITS
    log: str | None = None


class Answer(msgspec.Struct):
    """What came of the request with this number."""

    number: int
    outcome: Outcome


def imported(reference: str) -> Any:
    """The function that ``package.module:name`` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _call(request: Request) -> Any:
    return imported(request.function)(request.payload)


class _Server:
    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._unread = b""
        self._running: dict[int, ForkedWork] = {}

    def serve(self) -> None:
        """Until the parent closes the requests."""
        while True:
            ready, _, _ = select.select([self._requests], [], [], _POLL_SECONDS if self._running else None)
            if ready and not self._receive():
                break
            for number, work in list(self._running.items()):
                outcome = work.poll()
                if outcome is not None:
                    del self._running[number]
                    self._send(Answer(number, outcome))
        for work in self._running.values():
            work.stop()
            work.wait()

    def _receive(self) -> bool:
        piece = os.read(self._requests, _READ_BYTES)
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            request = msgspec.json.decode(line, type=Request)
            if request.function:
                log = None if request.log is None else Path(request.log)
                work = functools.partial(_call, request)
                self._running[request.number] = ForkedWork(work, request.limits, log, (self._requests, self._answers))
            elif request.number in self._running:
                self._running[request.number].stop()
        return bool(piece)

    def _send(self, answer: Answer) -> None:
        content = msgspec.json.encode(answer) + b"\n"
        while content:
            content = content[os.write(self._answers, content) :]


def main() -> None:
    """Serve. Arguments: the process id of the parent, and a function that prepares this process, or nothing."""
    parent, prepare = sys.argv[1:]
    end_with_parent(int(parent))
    # Ctrl-C is for the parent, which stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print must not mix with the answers.
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if prepare:
        imported(prepare)()
    _Server(requests, answers).serve()


if __name__ == "__main__":
    main()
