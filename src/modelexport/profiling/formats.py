"""A profile in the formats of other tools: collapsed stacks, speedscope, and the trace events of Perfetto.

Frames are module calls from the root inwards, with a kernel as the innermost frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from modelexport._version import __version__
from modelexport.display import printable
from modelexport.profiling.records import CallProfile, OwnedKernel, middle_runs
from modelexport.profiling.report import ROOT_NAME, ProfileReport

OVERHEAD_NAME = "(runtime overhead)"
_SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6


def as_collapsed(report: ProfileReport) -> str:
    """One line for each kernel: its stack, separated by semicolons, and its mean time in nanoseconds."""
    lines = []
    for stack, seconds in _stacks(report):
        # The text after the last space is the number, and a semicolon separates frames.
        frames = (printable(" ".join(frame.replace(";", ":").split())) for frame in stack)
        lines.append(f"{';'.join(frames)} {round(seconds * _NANOSECONDS)}\n")
    return "".join(lines)


def as_speedscope(report: ProfileReport) -> dict[str, Any]:
    """The JSON of a sampled profile: a sample for each kernel, weighted by its mean time in seconds."""
    frames: dict[str, int] = {}
    samples, weights = [], []
    for stack, seconds in _stacks(report):
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(seconds)
    return {
        "$schema": _SPEEDSCOPE_SCHEMA,
        "name": report.file,
        "exporter": f"modelexport {__version__}",
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": f"{report.runtime}, mean of one run",
                "unit": "seconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }


def as_trace(report: ProfileReport) -> dict[str, Any]:
    """The JSON of Chrome's trace event format: the kernels of one run, with a slice of each module call around them."""
    stacks = _CallStacks(report)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": report.file}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": report.runtime}},
    ]
    # The open slices: the call, and its event, which grows with each of its kernels.
    opened: list[tuple[str, dict[str, Any]]] = []
    end_of_outer = 0.0
    for kernel, start, seconds in _executions(report):
        begin, end = start * _MICROSECONDS, (start + seconds) * _MICROSECONDS
        if begin >= end_of_outer:
            end_of_outer = end
            chain = stacks.chain(kernel.call)
            same = 0
            while same < min(len(chain), len(opened)) and chain[same].id == opened[same][0]:
                same += 1
            del opened[same:]
            for call in chain[same:]:
                event = _slice(stacks.label(call), "module", begin, end, {"call": call.id, "class": call.class_name})
                opened.append((call.id, event))
                events.append(event)
            for _, event in opened:
                event["dur"] = end - event["ts"]
        details = {"node": kernel.node, "call": kernel.call, "kind": kernel.kind, "provider": kernel.provider}
        events.append(_slice(_kernel_label(kernel), "kernel", begin, min(end, end_of_outer), details))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slice(name: str, category: str, begin: float, end: float, details: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": 1, "cat": category, "name": name, "ts": begin, "dur": end - begin} | {
        "args": details
    }


def _executions(report: ProfileReport) -> Iterator[tuple[OwnedKernel, float, float]]:
    """Kernel, start and seconds of each execution: those of the recorded run, else the means one after another."""
    if report.timeline:
        for one in report.timeline:
            yield report.kernels[one.kernel], one.start, one.seconds
        return
    start = 0.0
    for kernel, seconds in zip(report.kernels, _means(report), strict=True):
        yield kernel, start, seconds
        start += seconds


def _stacks(report: ProfileReport) -> Iterator[tuple[list[str], float]]:
    """The frames and the mean seconds of each kernel, and of the overhead."""
    stacks = _CallStacks(report)
    for kernel, seconds in zip(report.kernels, _means(report), strict=True):
        labels = [stacks.label(call) for call in stacks.chain(kernel.call)]
        yield [*labels, _kernel_label(kernel)], seconds
    yield [OVERHEAD_NAME], max(report.overhead.mean, 0.0)


def _means(report: ProfileReport) -> list[float]:
    middle = middle_runs(report.session.seconds)
    return [float(np.asarray(kernel.seconds)[middle].mean()) for kernel in report.kernels]


def _kernel_label(kernel: OwnedKernel) -> str:
    return f"{kernel.op} {kernel.name}".strip()


class _CallStacks:
    """The calls around each call, and short labels for them."""

    def __init__(self, report: ProfileReport) -> None:
        self._calls = {call.id: call for call in report.calls}
        self._chains: dict[str, list[CallProfile]] = {}

    def chain(self, call: str) -> list[CallProfile]:
        """The call and its callers, the root first."""
        if call not in self._chains:
            known = self._calls[call]
            self._chains[call] = [*(self.chain(known.parent) if known.parent is not None else ()), known]
        return self._chains[call]

    def label(self, call: CallProfile) -> str:
        """The name of a call within the one around it, and its class."""
        if call.parent is None:
            return call.class_name or ROOT_NAME
        around = self._calls[call.parent].path
        name = call.id.removeprefix(f"{around}.") if around else call.id
        return f"{name}: {call.class_name}"
