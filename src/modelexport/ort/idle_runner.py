"""Keep the child process of onnxruntime between exports: starting it takes a tenth of the time of a small export."""

from __future__ import annotations

import atexit
import os
import threading

from modelexport.limits import RunLimits
from modelexport.ort.runner import Runner

# How long a process waits for the next export before it ends.
_SECONDS_IDLE = 60.0


class IdleRunner:
    """Keeps one runner between exports."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: Runner | None = None
        self._timer: threading.Timer | None = None
        # A forked process must not talk to the process of another.
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def take(self, limits: RunLimits, threads: int) -> Runner:
        """The runner that was kept, if it suits; else a new one."""
        runner = self._exchanged(None)
        if runner is not None and runner.suits(limits, threads):
            return runner
        if runner is not None:
            runner.__exit__()
        return Runner(limits, threads=threads)

    def keep(self, runner: Runner) -> None:
        """Keep a runner for the next `take`, for some seconds."""
        previous = self._exchanged(runner)
        if previous is not None:
            previous.__exit__()

    def close(self) -> None:
        """End the process of the runner that is kept."""
        runner = self._exchanged(None)
        if runner is not None:
            runner.__exit__()

    def _exchanged(self, runner: Runner | None) -> Runner | None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            if runner is not None:
                self._timer = threading.Timer(_SECONDS_IDLE, self.close)
                self._timer.daemon = True
                self._timer.start()
            previous, self._runner = self._runner, runner
            return previous

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._runner, self._timer = None, None


IDLE_RUNNER = IdleRunner()
