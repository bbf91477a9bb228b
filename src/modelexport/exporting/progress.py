"""Runs named steps one after the other: tells observers, and keeps what each took."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from modelexport.exporting.result import ProgressEvent, StepReport

Observer = Callable[[ProgressEvent], object]


def peak_memory_bytes() -> int:
    """The most memory this process has held so far; 0 where the platform does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class StepNote:
    """Lets a step say a word about its result."""

    def __init__(self) -> None:
        self.detail = ""


class Pipeline:
    """A fixed sequence of steps; `step` is entered once for each, in order."""

    def __init__(self, steps: tuple[str, ...], observer: Observer | None) -> None:
        self._names = steps
        self._observer = observer
        self.reports: list[StepReport] = []

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[StepNote]:
        """Run the next step, which must be `name`."""
        number = len(self.reports)
        if self._names[number] != name:
            raise ValueError(f"step {name!r} is out of order: {self._names[number]!r} comes next")
        self._tell(ProgressEvent(name, number + 1, len(self._names), finished=False))
        note = StepNote()
        start = time.perf_counter()
        yield note
        seconds = time.perf_counter() - start
        self.reports.append(StepReport(name, seconds, peak_memory_bytes(), note.detail))
        self._tell(ProgressEvent(name, number + 1, len(self._names), True, seconds, note.detail))

    def _tell(self, event: ProgressEvent) -> None:
        if self._observer is not None:
            self._observer(event)
