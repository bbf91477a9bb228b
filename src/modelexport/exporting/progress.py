"""The steps of a pipeline: reports progress to an observer, and measures the time and memory of each step."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from modelexport.errors import InputError
from modelexport.exporting.result import ProgressEvent, StepReport

Observer = Callable[[ProgressEvent], object]


def peak_memory_bytes() -> int:
    """The peak memory of this process so far; 0 on platforms that do not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def check_observer(observer: object) -> None:
    """Check that an observer can be called.

    Raises:
        InputError: It cannot.
    """
    if observer is not None and not callable(observer):
        raise InputError(f"progress={observer!r} cannot be called: give a function that takes a ProgressEvent")


class RunningStep:
    """The step that runs now; it may set a `detail` about its result."""

    def __init__(self) -> None:
        self.detail = ""


class Pipeline:
    """A sequence of steps; some are repeated where an attempt is rejected."""

    def __init__(self, steps: tuple[str, ...], observer: Observer | None) -> None:
        check_observer(observer)
        self._names = steps
        self._observer = observer
        self.reports: list[StepReport] = []

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[RunningStep]:
        """Run the step with this name."""
        number = self._names.index(name) + 1
        self._notify(ProgressEvent(name, number, len(self._names), finished=False))
        running = RunningStep()
        start = time.perf_counter()
        yield running
        seconds = time.perf_counter() - start
        self.reports.append(StepReport(name, seconds, peak_memory_bytes(), running.detail))
        self._notify(ProgressEvent(name, number, len(self._names), True, seconds, running.detail))

    def _notify(self, event: ProgressEvent) -> None:
        if self._observer is not None:
            self._observer(event)
