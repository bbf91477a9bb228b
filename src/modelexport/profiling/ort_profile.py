"""Read a profile that onnxruntime wrote: a list of trace events, those of one run before the event of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from modelexport.errors import FileFormatError
from modelexport.profiling.records import Kernel, Measurement, Slice

_KERNEL = "_kernel_time"
_RUN = "model_run"
# A run of a graph: the main graph, or a subgraph within the event of its owning node.
_GRAPH = "SequentialExecutor::Execute"
_MICROSECOND = 1e-6
# onnxruntime writes at most a million events, but each has the name of its node, which can have any length.
_MOST_BYTES = 2**30


# Microseconds or bytes.
_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Details(msgspec.Struct, gc=False):
    """The arguments of a kernel's event; onnxruntime writes memory since 1.28."""

    op_name: str = ""
    provider: str = ""
    node_index: str = ""
    activation_size: _Amount | None = None
    parameter_size: _Amount | None = None
    output_size: _Amount | None = None
    mem_bytes_in_use: _Amount | None = None
    mem_in_use_peak: _Amount | None = None


class _Event(msgspec.Struct, gc=False):
    name: str
    ts: _Amount
    dur: _Amount
    args: _Details


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    """A run of the model.

    Attributes:
        event: The event of the whole run.
        kernels: The events of its kernels, in the order in which they ended.
        around: By position of a kernel in a subgraph, the position of the kernel that owns the subgraph.
        temporary: By position of a kernel, the memory that it allocated and freed again.
    """

    event: _Event
    kernels: list[_Event]
    around: dict[int, int]
    temporary: dict[int, int]


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
        # onnxruntime writes numbers as text, which needs `strict=False`.
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event], strict=False)
    except (OSError, RecursionError, msgspec.MsgspecError) as error:
        raise FileFormatError(f"{path} cannot be read as a profile of onnxruntime: {error}") from error
    runs = list(_runs(events))
    if len(runs) <= warmup:
        raise FileFormatError(f"{path} has {len(runs)} complete runs of a model, and {warmup} are for warming up")
    return _summed(runs, warmup, runtime)


def _runs(events: list[_Event]) -> Iterator[_Run]:
    """Each run; the event of a kernel or graph follows those of the kernels within it."""
    kernels: list[_Event] = []
    around: dict[int, int] = {}
    temporary: dict[int, int] = {}
    # The positions of kernels that ended but whose graph did not, and the graphs whose owning kernel did not end.
    waiting: list[int] = []
    graphs: list[tuple[int, list[int]]] = []
    in_use = peak = None
    for event in events:
        if event.name.endswith(_KERNEL):
            position = len(kernels)
            while graphs and graphs[-1][0] >= event.ts:
                around.update(dict.fromkeys(graphs.pop()[1], position))
            waiting.append(position)
            kernels.append(event)
            now, highest = event.args.mem_bytes_in_use, event.args.mem_in_use_peak
            if now is not None and highest is not None:
                # Only a new peak shows that more was in use meanwhile than before and after.
                if in_use is not None and peak is not None and highest > peak:
                    temporary[position] = max(highest - max(in_use, now), 0)
                in_use, peak = now, highest
        elif event.name == _GRAPH:
            members: list[int] = []
            while waiting and kernels[waiting[-1]].ts >= event.ts:
                members.append(waiting.pop())
            graphs.append((event.ts, members))
        elif event.name == _RUN:
            yield _Run(event, kernels, around, temporary)
            kernels, around, temporary, waiting, graphs = [], {}, {}, [], []


class _Positions:
    """The position of each kernel in the list of all: known by the kernel around it, its name, and its index."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int | None, str, str], int] = {}

    def of_run(self, run: _Run) -> npt.NDArray[np.int64]:
        """The position of each kernel of a run."""
        found: dict[int, int] = {}
        for kernel in _by_start(run):
            # The kernels around it first.
            chain = [kernel]
            while (owner := run.around.get(chain[-1])) is not None and owner not in found:
                chain.append(owner)
            for one in reversed(chain):
                owner, event = run.around.get(one), run.kernels[one]
                key = (None if owner is None else found[owner], event.name, event.args.node_index)
                found[one] = self.keys.setdefault(key, len(self.keys))
        return np.array([found[kernel] for kernel in range(len(run.kernels))], np.int64)


def _by_start(run: _Run) -> list[int]:
    starts = [event.ts for event in run.kernels]
    return sorted(range(len(starts)), key=starts.__getitem__)


def _summed(runs: list[_Run], warmup: int, runtime: str) -> OrtProfile:
    """The kernels of all runs."""
    positions = _Positions()
    placed = [positions.of_run(run) for run in runs]
    size = len(positions.keys)
    temporary = np.zeros(size, np.int64)
    last: list[_Details] = [_Details()] * size
    for run, at in zip(runs, placed, strict=True):
        for kernel, amount in run.temporary.items():
            temporary[at[kernel]] = max(temporary[at[kernel]], amount)
        for position, event in zip(at.tolist(), run.kernels, strict=True):
            last[position] = event.args
    measured = list(zip(runs, placed, strict=True))[warmup:]
    seconds = [np.bincount(at, _own_times(run), size) * _MICROSECOND for run, at in measured]
    counts = np.max([np.bincount(at, minlength=size) for _, at in measured], axis=0)
    session = [run.event.dur * _MICROSECOND for run, _ in measured]
    middle = sorted(range(len(session)), key=session.__getitem__)[len(session) // 2]
    kernels = tuple(
        Kernel(
            name=name.removesuffix(_KERNEL),
            op=details.op_name,
            provider=details.provider,
            seconds=tuple(times),
            executions=int(counts[kernel]),
            activation_bytes=details.activation_size,
            parameter_bytes=details.parameter_size,
            output_bytes=details.output_size,
            temporary_bytes=None if details.mem_in_use_peak is None else int(temporary[kernel]),
        )
        for ((_, name, _), kernel), details, times in zip(
            positions.keys.items(), last, np.transpose(seconds).tolist(), strict=True
        )
    )
    parents = tuple(parent for parent, _, _ in positions.keys)
    measurement = Measurement(
        runtime=runtime, kernels=kernels, session=tuple(session), timeline=_timeline(*measured[middle])
    )
    return OrtProfile(measurement, parents)


def _own_times(run: _Run) -> npt.NDArray[np.float64]:
    """The microseconds of each kernel without those of the kernels in its subgraphs."""
    times = np.array([event.dur for event in run.kernels], np.float64)
    inner = np.zeros(len(times))
    for kernel, owner in run.around.items():
        inner[owner] += times[kernel]
    # Times are rounded to microseconds, so the parts of an event can exceed it.
    return np.maximum(times - inner, 0)


def _timeline(run: _Run, positions: npt.NDArray[np.int64]) -> tuple[Slice, ...]:
    ordered = [(kernel, run.kernels[kernel]) for kernel in _by_start(run)]
    return tuple(
        Slice(int(positions[kernel]), (event.ts - run.event.ts) * _MICROSECOND, event.dur * _MICROSECOND)
        for kernel, event in ordered
    )
