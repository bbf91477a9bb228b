"""A session that runs a file, records onnxruntime's profile, and saves the graph that it executes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modelexport.errors import InputError, OnnxRunError, RunLimitError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort.runner import Runner, require_onnxruntime

# Our names of onnxruntime's levels.
OPTIMIZATION_LEVELS: Mapping[str, str] = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "off": "ORT_DISABLE_ALL",
}


class ProfiledSession:
    """A session in a child process. A context manager: the process ends with the context.

    Args:
        path: The file.
        folder: An empty folder for the profile and the executed graph with its weights.
        providers: The execution providers by name, with or without ``ExecutionProvider``; onnxruntime adds the CPU.
        optimization: One of `OPTIMIZATION_LEVELS`.
        threads: The threads of one operator; 0 for onnxruntime's default.
        limits: The limits of loading, and of each run.

    Attributes:
        executed: The executed graph, whose nodes the profile names.
        version: The version of onnxruntime.
        feeds: The inputs of the runs.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        *,
        providers: Sequence[str] = (),
        optimization: str = "all",
        threads: int = 0,
        limits: RunLimits = DEFAULT_RUN_LIMITS,
    ) -> None:
        self.executed = folder / "executed.onnx"
        self.version = ""
        self.feeds: Mapping[str, np.ndarray] = {}
        self._path = path
        self._header = {
            "path": str(path.resolve()),
            "profile": str(folder / "profile"),
            "executed": str(self.executed),
            "providers": list(providers),
            "level": OPTIMIZATION_LEVELS[optimization],
            "threads": threads,
        }
        self._runner = Runner(limits)

    def __enter__(self) -> ProfiledSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self._runner.__exit__(*raised)

    def start(self) -> None:
        """Start the process, which imports onnxruntime meanwhile, without waiting for it."""
        self._runner.start()

    def open(self, candidates: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Load the file, and run it once.

        Args:
            candidates: Inputs by name; the first that the file accepts are used.

        Raises:
            InputError: onnxruntime is not installed, or does not have a provider.
            OnnxRunError: It cannot load or run the file, crashed or exceeded a limit.
        """
        problem: OnnxRunError | None = None
        for feeds in candidates:
            self.load(feeds)
            try:
                self.run()
            except RunLimitError:
                raise
            except OnnxRunError as error:
                problem = problem or error
            else:
                return
        raise problem or InputError(f"there are no inputs to run {self._path} on")

    def load(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Load the file, which saves the graph that it executes, without running it.

        Args:
            feeds: The inputs of later runs.

        Raises:
            InputError: onnxruntime is not installed, or does not have a provider.
            OnnxRunError: It cannot load the file, crashed or exceeded a limit.
        """
        require_onnxruntime()
        answer = self._ask("load", "profile_open", {**self._header, "feeds": list(feeds)}, list(feeds.values()))
        if "no_provider" in answer:
            raise InputError(
                f"onnxruntime has no provider {answer['no_provider']!r} here: it has {', '.join(answer['available'])}"
            )
        self.version, self.feeds = answer["version"], feeds

    def run(self) -> None:
        """Run the file once more.

        Raises:
            OnnxRunError: It failed, crashed or exceeded a limit.
        """
        self._ask("run", "profile_run", {})

    def close(self) -> Path:
        """End the profile, which has all runs. Returns its path."""
        return Path(self._ask("profile", "profile_close", {})["profile"])

    def _ask(
        self, what: str, task: str, header: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()
    ) -> Mapping[str, Any]:
        try:
            return self._runner.ask(task, "onnxruntime", header, arrays)[0]
        except OnnxRunError as error:
            raise type(error)(f"onnxruntime cannot {what} {self._path}: {error}") from error
