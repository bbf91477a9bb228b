"""Calls that a node works for besides its own, because the exporter merged equal nodes before its graph could be seen.

In PyTorch a call reads what it was given and what it or its callees made. A call that reads a value of another one
without having been given it made an equal one itself, and the exporter kept just one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from modelexport.attribution import Attribution, Kind, recorded_by_exporter
from modelexport.hierarchy import CallId, CallTree

_SEVERAL_CALLS = 0.95


def with_sharers(graph: ir.Graph, recorded: Mapping[ir.Node, CallId], calls: CallTree) -> dict[ir.Node, Attribution]:
    """The attribution of each node, with the calls that shared it.

    Args:
        graph: The graph.
        recorded: The call of each node for which there is one.
        calls: The calls, with the boundaries that were recorded.
    """
    given = {call.id: {tensor.tensor for tensor in call.inputs} for call in calls}
    chains = {call.id: frozenset(calls.chain(call.id)) for call in calls}
    sharers: dict[ir.Node, set[CallId]] = {}
    for node in reversed(graph):
        owner = recorded.get(node)
        if owner is None:
            continue
        for value in node.outputs:
            for use in value.uses():
                reader = recorded.get(use.node)
                # Whoever shares the reader made what it reads, too.
                around = sharers.get(use.node, set()) if reader is None else {reader, *sharers.get(use.node, ())}
                for call in around:
                    # Made by one of its callers or callees, or by itself: it has it from there.
                    if call in chains[owner] or owner in chains[call]:
                        continue
                    maker = _maker(value.name, call, chains[owner], given, calls)
                    if maker is not None:
                        sharers.setdefault(node, set()).add(maker)
    return {node: _attribution(call, sharers.get(node, set())) for node, call in recorded.items()}


def _maker(
    tensor: str | None,
    reader: CallId,
    owner_chain: frozenset[CallId],
    given: Mapping[CallId, set[str | None]],
    calls: CallTree,
) -> CallId | None:
    """The call that made a value like this one for the reader; None where the reader has it from the owner."""
    call: CallId | None = reader
    while call is not None and call not in owner_chain:
        if tensor not in given[call]:
            # An argument whose tensor is not known may be this very value.
            return None if None in given[call] else call
        call = calls[call].parent
    return None


def _attribution(call: CallId, sharers: set[CallId]) -> Attribution:
    if not sharers:
        return recorded_by_exporter(call)
    reason = "equal nodes of several calls became one; this call's came first"
    return Attribution(call, Kind.MERGED, _SEVERAL_CALLS, reason, tuple(sorted(sharers)))
