"""Spread the time of a fused kernel over the calls whose work it does.

The rule: in proportion to the times that the original nodes it replaces take in a session without optimization. Where
those are unknown, as for nodes that were fused before the file was written, the calls get equal parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from modelexport.hierarchy import HierarchyDocument
from modelexport.profiling.records import OwnedKernel


def split_shares(
    kernels: Sequence[OwnedKernel], document: HierarchyDocument, seconds: Mapping[str, float]
) -> dict[int, dict[str, float]]:
    """The fraction of a kernel's time by call, by position of the kernel, for kernels that do work of several calls.

    Args:
        kernels: The kernels of the optimized graph.
        document: The hierarchy of the file.
        seconds: The time of each node of the file without optimization, by node id.
    """
    records = {node.id: node for node in document.nodes}
    found: dict[int, dict[str, float]] = {}
    for position, kernel in enumerate(kernels):
        calls = (kernel.call, *kernel.contributors)
        if len(calls) == 1:
            continue
        weights: dict[str, float] = defaultdict(float)
        for source in kernel.sources:
            record = records.get(source)
            sharers = () if record is None else [c for c in (record.module, *record.contributors) if c in calls]
            for call in sharers:
                weights[call] += seconds.get(source, 0.0) / len(sharers)
        total = sum(weights.values())
        if total and len(weights) > 1:
            found[position] = {call: weight / total for call, weight in weights.items()}
        else:
            found[position] = dict.fromkeys(calls, 1 / len(calls))
    return found
