"""Read a profile that onnxruntime wrote: a list of trace events, those of one run before the event of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from modelexport.errors import FileFormatError
from modelexport.profiling.records import Kernel, Measurement, Slice

_KERNEL = "_kernel_time"
_RUN = "model_run"
# A run of a graph: the main graph, or a subgraph within the event of its owning node.
_GRAPH = "SequentialExecutor::Execute"
_MICROSECOND = 1e-6
# onnxruntime writes at most a million events, but each has the name of its node, which can have any length.
_MOST_BYTES = 2**30


class _Details(msgspec.Struct, gc=False):
    """The arguments of a kernel's event; onnxruntime writes numbers as text, and memory since 1.28."""

    op_name: str = ""
    provider: str = ""
    node_index: str = ""
    activation_size: str = ""
    parameter_size: str = ""
    output_size: str = ""
    mem_bytes_in_use: str = ""
    mem_in_use_peak: str = ""


class _Event(msgspec.Struct, gc=False):
    name: str
    ts: int
    dur: int
    args: _Details


@dataclasses.dataclass(eq=False, slots=True)
class _Execution:
    """One execution of a kernel; `inner` is the time of the kernels of its subgraphs."""

    event: _Event
    parent: _Execution | None = None
    inner: int = 0
    temporary: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class _GraphRun:
    start: int
    members: list[_Execution]


_Run = tuple[_Event, list[_Execution]]


@dataclasses.dataclass(frozen=True)
class OrtProfile:
    """A profile of onnxruntime.

    Attributes:
        measurement: The kernels and their times.
        parents: For each kernel the position of the one whose subgraph it is in; None in the main graph.
    """

    measurement: Measurement
    parents: tuple[int | None, ...]


def read_ort_profile(path: Path, *, warmup: int = 0, runtime: str = "onnxruntime") -> OrtProfile:
    """Read a profile.

    Args:
        path: The file.
        warmup: How many runs at its beginning do not count.
        runtime: The name and version of the runtime.

    Raises:
        FileFormatError: It is not a profile of onnxruntime, or has no run after the warm-up.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FileFormatError(f"{path} has more than {_MOST_BYTES:,} bytes: profile fewer runs")
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    except (OSError, msgspec.MsgspecError) as error:
        raise FileFormatError(f"{path} cannot be read as a profile of onnxruntime: {error}") from error
    runs = list(_runs(events))
    if len(runs) <= warmup:
        raise FileFormatError(f"{path} has {len(runs)} complete runs of a model, and {warmup} are for warming up")
    return _summed(runs, warmup, runtime)


def _runs(events: list[_Event]) -> Iterator[_Run]:
    """Each run with its executions; an event follows those of the subgraphs within it."""
    executions: list[_Execution] = []
    done: list[_Execution | _GraphRun] = []
    in_use = peak = None
    for event in events:
        if event.name.endswith(_KERNEL):
            execution = _Execution(event)
            while done and isinstance(inner := done[-1], _GraphRun) and inner.start >= event.ts:
                done.pop()
                for member in inner.members:
                    member.parent = execution
                    execution.inner += member.event.dur
            done.append(execution)
            executions.append(execution)
            if event.args.mem_in_use_peak:
                now, highest = int(event.args.mem_bytes_in_use), int(event.args.mem_in_use_peak)
                # Only a new peak shows that more was in use meanwhile than before and after.
                if in_use is not None and peak is not None and highest > peak:
                    execution.temporary = max(highest - max(in_use, now), 0)
                in_use, peak = now, highest
        elif event.name == _GRAPH:
            members: list[_Execution] = []
            while done and isinstance(last := done[-1], _Execution) and last.event.ts >= event.ts:
                done.pop()
                members.append(last)
            done.append(_GraphRun(event.ts, members))
        elif event.name == _RUN:
            yield event, sorted(executions, key=lambda one: one.event.ts)
            executions, done = [], []


def _summed(runs: list[_Run], warmup: int, runtime: str) -> OrtProfile:
    """The kernels of all runs. A kernel is known by the kernel around it, its name, and its index in its graph."""
    positions: dict[tuple[int | None, str, str], int] = {}
    found: dict[_Execution, int] = {}

    def position(execution: _Execution) -> int:
        if execution not in found:
            parent = None if execution.parent is None else position(execution.parent)
            key = (parent, execution.event.name, execution.event.args.node_index)
            found[execution] = positions.setdefault(key, len(positions))
        return found[execution]

    for _, executions in runs:
        for execution in executions:
            position(execution)
    measured = runs[warmup:]
    seconds = np.zeros((len(positions), len(measured)))
    counts = np.zeros((len(positions), len(measured)), np.int64)
    temporary = np.zeros(len(positions), np.int64)
    last: list[_Details] = [_Details()] * len(positions)
    for number, (_, executions) in enumerate(runs):
        for execution in executions:
            kernel = found[execution]
            last[kernel] = execution.event.args
            temporary[kernel] = max(temporary[kernel], execution.temporary)
            if number >= warmup:
                # Times are rounded to microseconds, so the parts of an event can exceed it.
                seconds[kernel, number - warmup] += max(execution.event.dur - execution.inner, 0) * _MICROSECOND
                counts[kernel, number - warmup] += 1
    session = [event.dur * _MICROSECOND for event, _ in measured]
    middle = sorted(range(len(session)), key=session.__getitem__)[len(session) // 2]
    start, executions = measured[middle]
    timeline = tuple(
        Slice(found[one], (one.event.ts - start.ts) * _MICROSECOND, one.event.dur * _MICROSECOND) for one in executions
    )
    kernels = tuple(
        Kernel(
            name=name.removesuffix(_KERNEL),
            op=details.op_name,
            provider=details.provider,
            seconds=tuple(seconds[kernel].tolist()),
            executions=int(counts[kernel].max()),
            activation_bytes=_number(details.activation_size),
            parameter_bytes=_number(details.parameter_size),
            output_bytes=_number(details.output_size),
            temporary_bytes=int(temporary[kernel]) if details.mem_in_use_peak else None,
        )
        for ((_, name, _), kernel), details in zip(positions.items(), last, strict=True)
    )
    parents = tuple(parent for parent, _, _ in positions)
    return OrtProfile(Measurement(runtime=runtime, kernels=kernels, session=tuple(session), timeline=timeline), parents)


def _number(text: str) -> int | None:
    return int(text) if text else None
