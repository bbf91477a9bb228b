"""A step of the sweep in a process of its own, on the engine of batches, and its outcome as the records have it."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

from modelexport.processes import Ending, ForkedWork, Outcome, ProcessLimits

# A process that waits for something that never comes takes no CPU time.
_WALL_PER_CPU = 5


def limits_of(cpu_seconds: int, memory_bytes: int) -> ProcessLimits:
    """Limits of CPU time and memory, and of wall-clock time for a process that waits."""
    return ProcessLimits(_WALL_PER_CPU * cpu_seconds, cpu_seconds, memory_bytes)


def run_limited(work: Callable[[], Any], cpu_seconds: int, memory_bytes: int) -> dict[str, Any]:
    """What `work` returns, which must be JSON, or how it failed, after it has ended in a process of its own.

    The process is forked, so that a model that was built is there.
    """
    limits = limits_of(cpu_seconds, memory_bytes)
    return as_record(ForkedWork(functools.partial(attempted, work), limits).wait(), limits)


def attempted(work: Callable[[], Any]) -> dict[str, Any]:
    """A ``value``, or the ``error`` in words."""
    try:
        return {"value": work()}
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the outcome
        return {"error": describe(error), "trace": traceback.format_exc()[-3000:]}


def as_record(outcome: Outcome, limits: ProcessLimits) -> dict[str, Any]:
    """What a process of `attempted` returned, or how it ended, with its ``cpu`` seconds."""
    if outcome.ending is Ending.RETURNED:
        found = outcome.value
    elif outcome.ending is Ending.TIMED_OUT:
        found = {"error": f"TimeLimit: timed out after {limits.cpu_seconds} s of CPU time"}
    elif outcome.error is not None:
        found = {"error": f"{outcome.error.class_name}: {outcome.error.message}"}
    else:
        found = {"error": f"ProcessDied: {outcome.detail}"}
    return {**found, "cpu": round(outcome.cpu_seconds, 2)}


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
