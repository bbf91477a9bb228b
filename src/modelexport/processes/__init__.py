"""Run a function in a process of its own, with limits of time and memory: its result, or how the process ended."""

from __future__ import annotations

from modelexport.processes.forked_work import ForkedWork
from modelexport.processes.outcome import Ending, Outcome, ProcessLimits, RaisedError, describe_error
from modelexport.processes.pool import ProcessPool

__all__ = [
    "Ending",
    "ForkedWork",
    "Outcome",
    "ProcessLimits",
    "ProcessPool",
    "RaisedError",
    "describe_error",
]
