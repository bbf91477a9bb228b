"""The records of a profile: kernels as a runtime measured them, and the report by module call.

A source of times (a run in onnxruntime, the profile file of another runtime) returns a `Measurement`: kernels of the
graph that the runtime executed, each with its own time in every run. `owners.py` gives each kernel the call that owns
it, `aggregation.py` sums them by call. Costs that are known without a run are columns of a call, by its id.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class Kernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the executed graph, with its time in each run.

    Attributes:
        name: Its name in the runtime.
        op: Its operator in the runtime.
        provider: The execution provider or device that ran it; empty if unknown.
        seconds: Its own time in each run, without kernels of its subgraphs.
        executions: How often it ran in one run: more than once in a loop.
        sources: The ids of the nodes of the profiled file that it executes, the one that computes its output last;
            empty if that is not known.
        activation_bytes: The size of its inputs that other kernels computed; None if unknown.
        parameter_bytes: The size of its inputs that are weights; None if unknown.
        output_bytes: The size of its outputs; None if unknown.
        temporary_bytes: Memory that it allocated and freed again, as far as it raised the session's peak; None if
            unknown.
    """

    name: str
    op: str
    provider: str
    seconds: tuple[float, ...]
    executions: int = 1
    sources: tuple[str, ...] = ()
    activation_bytes: int | None = None
    parameter_bytes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """One execution of a kernel: its position in the list of kernels, its start in the run, and its seconds.

    The seconds include the kernels of its subgraphs.
    """

    kernel: int
    start: float
    seconds: float


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime measured.

    Attributes:
        runtime: Its name and version.
        kernels: The kernels, in the order of execution.
        session: The time of the whole session in each run, at least the sum of the kernels.
        timeline: The executions of kernels in the run with the median session time; empty if unknown.
        notes: What the user should know of the measurement.
    """

    runtime: str
    kernels: tuple[Kernel, ...]
    session: tuple[float, ...]
    timeline: tuple[Slice, ...] = ()
    notes: tuple[str, ...] = ()


class OwnedKernel(Kernel, frozen=True, kw_only=True, omit_defaults=True):
    """A kernel and the call that owns it.

    Attributes:
        node: The id of its node in the executed graph.
        call: The call that owns it.
        kind: How the owner is known.
        contributors: The other calls whose work it also does.
    """

    node: str
    call: str
    kind: str
    contributors: tuple[str, ...] = ()


class Timing(msgspec.Struct, frozen=True):
    """Seconds over runs.

    Attributes:
        median: The median.
        p90: The 90th percentile.
        mean: The mean over the middle half of the runs, by session time. The same runs count for every row, so means
            add up, and runs that were disturbed do not count.
        seconds: The time of each run.
    """

    median: float
    p90: float
    mean: float
    seconds: tuple[float, ...]


def middle_runs(session: Sequence[float]) -> list[int]:
    """The positions of the middle half of the runs by session time, at least one."""
    order = sorted(range(len(session)), key=session.__getitem__)
    left_out = len(order) // 4
    return sorted(order[left_out : len(order) - left_out])


def timing(seconds: Sequence[float] | np.ndarray, middle: Sequence[int]) -> Timing:
    """The statistics of the seconds of each run; `middle` are the runs that count for the mean."""
    return timings([seconds], middle)[0]


def timings(rows: Sequence[Sequence[float] | np.ndarray], middle: Sequence[int]) -> list[Timing]:
    """The statistics of several rows, each with the seconds of each run: one call for all rows of a large report."""
    array = np.asarray(rows, np.float64)
    medians, p90s = np.quantile(array, (0.5, 0.9), axis=1)
    means = array[:, list(middle)].mean(axis=1)
    columns = (one.tolist() for one in (medians, p90s, means, array))
    return [Timing(median, p90, mean, tuple(row)) for median, p90, mean, row in zip(*columns, strict=True)]


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes of the kernels of a call, summed; `temporary` is the largest of them. None if the runtime does not say."""

    activation: int | None = None
    parameter: int | None = None
    output: int | None = None
    temporary: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call, or a group of calls, uses.

    Attributes:
        own: The time of its own kernels.
        total: The time of its own kernels and of the calls inside of it.
        share: Its own time by the session's, from the means.
        total_share: Its total time by the session's, from the means.
        nodes: The number of kernels that it owns.
        memory: Of the kernels that it owns.
        providers: The number of its own kernels by execution provider.
        fused_with: The calls whose work kernels of this one also do.
        fused_into: The calls whose kernels do work of this one.
        source: File and line of the code behind its most expensive kernel; empty if the file does not say.
    """

    own: Timing
    total: Timing
    share: float
    total_share: float
    nodes: int
    memory: Memory
    providers: dict[str, int]
    fused_with: tuple[str, ...] = ()
    fused_into: tuple[str, ...] = ()
    source: str = ""


class CallProfile(Usage, frozen=True, kw_only=True, omit_defaults=True):
    """A module call: its id (``path``, ``path@1``), its module, the call that called it, and what it uses."""

    id: str
    path: str
    class_name: str
    parent: str | None = None


class ProfileRow(Usage, frozen=True, kw_only=True, omit_defaults=True):
    """A row of a report: a call, a module, a class or an operator, and the number of its calls."""

    name: str
    class_name: str
    calls: int
