"""Sum the kernels of a profile by module call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from modelexport.hierarchy import ROOT_CALL, CallRecord, HierarchyDocument
from modelexport.profiling.records import CallProfile, Memory, OwnedKernel, Timing, middle_runs, timing, timings
from modelexport.storage import source_line

# How much of a kernel's time counts for each call; by default all for its owner.
Shares = Mapping[int, Mapping[str, float]]


def profile_calls(
    document: HierarchyDocument,
    kernels: Sequence[OwnedKernel],
    session: Sequence[float],
    shares: Shares,
    nodes: Mapping[str, onnx.NodeProto],
) -> tuple[CallProfile, ...]:
    """The profile of every module call, callers before the calls inside of them.

    Args:
        document: The hierarchy.
        kernels: The kernels with their owners.
        session: The session's time in each run.
        shares: By position of a kernel, the fraction of its time by call; the owner has all of it by default.
        nodes: The nodes of the file by id.
    """
    root = CallRecord(str(ROOT_CALL), "", 0, "")
    calls = {call.id: call for call in (root, *document.calls)}
    classes = {module.path: module.class_name for module in document.modules}
    own = {call: np.zeros(len(session)) for call in calls}
    by_call: dict[str, list[OwnedKernel]] = defaultdict(list)
    into: dict[str, dict[str, None]] = defaultdict(dict)
    for position, kernel in enumerate(kernels):
        by_call[kernel.call].append(kernel)
        for call, fraction in shares.get(position, {kernel.call: 1.0}).items():
            own[call] += fraction * np.asarray(kernel.seconds)
        for call in kernel.contributors:
            into[call][kernel.call] = None
    total = {call: np.zeros(len(session)) for call in calls}
    for call, seconds in own.items():
        around = call
        total[around] += seconds
        while around != root.id:
            around = calls[around].parent or root.id
            total[around] += seconds
    middle = middle_runs(session)
    whole = timing(session, middle).mean

    def profiled(call: CallRecord, own_time: Timing, total_time: Timing) -> CallProfile:
        owned = by_call[call.id]
        return CallProfile(
            id=call.id,
            path=call.path,
            class_name=classes.get(call.path, ""),
            parent=None if call.id == root.id else call.parent or root.id,
            own=own_time,
            total=total_time,
            share=own_time.mean / whole if whole else 0.0,
            total_share=total_time.mean / whole if whole else 0.0,
            nodes=len(owned),
            memory=sum_memory(owned),
            providers=dict(Counter(kernel.provider for kernel in owned if kernel.provider)),
            fused_with=tuple(dict.fromkeys(other for kernel in owned for other in kernel.contributors)),
            fused_into=tuple(into[call.id]),
            source=_source(owned, nodes),
        )

    times = (timings(list(seconds.values()), middle) for seconds in (own, total))
    return tuple(map(profiled, calls.values(), *times))


def sum_memory(kernels: Iterable[OwnedKernel]) -> Memory:
    """The memory of kernels: sums, and the largest temporary."""
    kernels = list(kernels)

    def known(amounts: Iterable[int | None]) -> list[int]:
        return [amount for amount in amounts if amount is not None]

    def total(amounts: Iterable[int | None]) -> int | None:
        found = known(amounts)
        return sum(found) if found else None

    return Memory(
        activation=total(kernel.activation_bytes for kernel in kernels),
        parameter=total(kernel.parameter_bytes for kernel in kernels),
        output=total(kernel.output_bytes for kernel in kernels),
        temporary=max(known(kernel.temporary_bytes for kernel in kernels), default=None),
    )


def _source(kernels: Iterable[OwnedKernel], nodes: Mapping[str, onnx.NodeProto]) -> str:
    """The source line of the most expensive kernel that has one."""
    found = sorted((kernel for kernel in kernels if kernel.node in nodes), key=lambda one: -sum(one.seconds))
    return next(filter(None, (source_line(nodes[kernel.node]) for kernel in found)), "")
