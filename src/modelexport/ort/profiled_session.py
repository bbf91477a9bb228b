"""Run a file several times in one session that records onnxruntime's profile and saves the graph that it executes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modelexport.errors import InputError, OnnxRunError, RunLimitError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort.runner import Runner, require_onnxruntime

_NAME = "onnxruntime"
# Our names of onnxruntime's levels.
OPTIMIZATION_LEVELS: Mapping[str, str] = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "off": "ORT_DISABLE_ALL",
}


@dataclasses.dataclass(frozen=True)
class ProfiledSession:
    """The files of a profiled session.

    Attributes:
        profile: The profile, with all runs.
        executed: The executed graph, whose nodes the profile names.
        version: The version of onnxruntime.
        feeds: The inputs of the runs.
    """

    profile: Path
    executed: Path
    version: str
    feeds: Mapping[str, np.ndarray]


def profile_session(
    path: Path,
    candidates: Iterable[Mapping[str, np.ndarray]],
    folder: Path,
    *,
    runs: int,
    providers: Sequence[str],
    optimization: str,
    threads: int = 0,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ProfiledSession:
    """Run a file in a child process, with onnxruntime's profile.

    Args:
        path: The file.
        candidates: Inputs by name; the first that the file accepts are used.
        folder: An empty folder for the profile and the executed graph with its weights.
        runs: How often it runs, warm-up included.
        providers: The execution providers by name, with or without ``ExecutionProvider``; onnxruntime adds the CPU.
        optimization: One of `OPTIMIZATION_LEVELS`.
        threads: The threads of one operator; 0 for onnxruntime's default.
        limits: The limits of loading, and of each run.
        progress: Called with the number of finished runs and of all.

    Raises:
        InputError: onnxruntime is not installed, or does not have a provider.
        OnnxRunError: It cannot load or run the file, crashed or exceeded a limit.
    """
    require_onnxruntime()
    executed = folder / "executed.onnx"
    with Runner(limits) as runner:
        problem: OnnxRunError | None = None
        for feeds in candidates:
            header = {
                "path": str(path.resolve()),
                "profile": str(folder / "profile"),
                "executed": str(executed),
                "providers": list(providers),
                "level": OPTIMIZATION_LEVELS[optimization],
                "threads": threads,
                "feeds": list(feeds),
            }
            answer = _ask(runner, f"load {path}", "profile_open", header, list(feeds.values()))
            if "no_provider" in answer:
                raise InputError(
                    f"onnxruntime has no {answer['no_provider']!r} here: it has {', '.join(answer['available'])}"
                )
            try:
                _ask(runner, f"run {path}", "profile_run")
            except RunLimitError:
                raise
            except OnnxRunError as error:
                problem = problem or error
                continue
            for done in range(1, runs):
                progress(done, runs)
                _ask(runner, f"run {path}", "profile_run")
            progress(runs, runs)
            profile = _ask(runner, f"profile {path}", "profile_close")["profile"]
            return ProfiledSession(Path(profile), executed, answer["version"], feeds)
    raise problem or InputError(f"there are no inputs to run {path} on")


def _ask(
    runner: Runner, what: str, task: str, header: Mapping[str, Any] | None = None, arrays: Sequence[np.ndarray] = ()
) -> Mapping[str, Any]:
    try:
        return runner.ask(task, _NAME, header or {}, arrays)[0]
    except RunLimitError as error:
        raise RunLimitError(f"cannot {what}: {error}") from error
    except OnnxRunError as error:
        raise OnnxRunError(f"onnxruntime cannot {what}: {error}") from error
