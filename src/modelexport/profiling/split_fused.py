"""Spread the time of a fused kernel over the calls whose work it does.

The rule: in proportion to the times that the original nodes it replaces take in a session without optimization. Where
those are unknown, as for nodes that were fused before the file was written, the calls get equal parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from modelexport.graph import nodes_with_ids
from modelexport.hierarchy import HierarchyDocument
from modelexport.ownership import Projection
from modelexport.profiling.owners import OwnedGraph


def split_shares(
    owned: OwnedGraph, tagged: ir.Model, document: HierarchyDocument, seconds: Mapping[str, float]
) -> dict[int, dict[str, float]]:
    """The fraction of a kernel's time by call, by position of the kernel, for kernels that do work of several calls.

    Args:
        owned: The kernels of the optimized graph.
        tagged: The graph of the file.
        document: Its hierarchy.
        seconds: The time of each node of the file without optimization, by node id.
    """
    records = {node.id: node for node in document.nodes}
    ids = {node: identity for identity, node in nodes_with_ids(tagged)}
    found: dict[int, dict[str, float]] = {}
    for position, (kernel, node) in enumerate(zip(owned.kernels, owned.nodes, strict=True)):
        calls = (kernel.call, *kernel.contributors)
        if len(calls) == 1:
            continue
        weights: dict[str, float] = defaultdict(float)
        for original in _replaced(node, owned.projection) if node is not None else ():
            record = records.get(ids.get(original, ""))
            sharers = () if record is None else [c for c in (record.module, *record.contributors) if c in calls]
            for call in sharers:
                weights[call] += seconds.get(ids[original], 0.0) / len(sharers)
        total = sum(weights.values())
        if total and len(weights) > 1:
            found[position] = {call: weight / total for call, weight in weights.items()}
        else:
            found[position] = dict.fromkeys(calls, 1 / len(calls))
    return found


def _replaced(node: ir.Node, projection: Projection) -> Iterator[ir.Node]:
    """The original nodes between the tensors that a node of the executed graph consumes and those it produces."""
    values = projection.values
    if values is None:
        return
    waiting = [values.producer_of(value) for value in node.outputs]
    seen: set[ir.Node] = set()
    while waiting:
        original = waiting.pop()
        if original is None or original in seen:
            continue
        seen.add(original)
        yield original
        removed = (value for value in original.inputs if value is not None and not values.is_kept(values.number(value)))
        waiting.extend(map(values.producer, removed))
