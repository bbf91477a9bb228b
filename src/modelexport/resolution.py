"""Owners for nodes of which nobody recorded one, from data flow.

The owner is the smallest call that explains the node: the innermost call that encloses all its known
neighbours. A node never crosses into another subtree than that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from modelexport.attribution import Attribution, Kind
from modelexport.graph import graph_bodies
from modelexport.hierarchy import ROOT_CALL, CallId, CallTree

# What each confidence stands for is in docs/attribution.md.
CERTAIN = 1.0
ONE_REGION = 0.9
AGREEING_NEIGHBOURS = 0.8
COMMON_CALLER = 0.5
NO_EVIDENCE = 0.1


def complete(model: ir.Model, known: Mapping[ir.Node, Attribution], calls: CallTree) -> dict[ir.Node, Attribution]:
    """`known`, with an inferred attribution for every node of the model that it misses."""
    found = dict(known)
    _complete_graph(model.graph, found, calls, None)
    if model.functions:
        _complete_functions(model, found, calls)
    return found


def _complete_graph(
    nodes: Iterable[ir.Node],
    found: dict[ir.Node, Attribution],
    calls: CallTree,
    enclosing: CallId | None,
) -> None:
    waiting: list[tuple[list[ir.Node], CallId | None]] = [(list(nodes), enclosing)]
    while waiting:
        current, around = waiting.pop()
        # Producers are resolved before their consumers, so that evidence travels along chains of unknown nodes;
        # what then has consumers only (constants) is resolved on the way back.
        missing = [node for node in current if node not in found]
        late = [node for node in missing if not _resolve(node, found, calls, around, consumers_too=False)]
        for node in reversed(late):
            if not _resolve(node, found, calls, around, consumers_too=True):
                found[node] = _without_neighbours(around)
        for node in current:
            waiting.extend((list(body), found[node].owner) for _, body in graph_bodies(node))


def _resolve(
    node: ir.Node,
    found: dict[ir.Node, Attribution],
    calls: CallTree,
    around: CallId | None,
    *,
    consumers_too: bool,
) -> bool:
    producers = {value.producer() for value in node.inputs if value is not None}
    neighbours = {found[p].owner for p in producers if p is not None and p in found}
    consumers = {use.node for output in node.outputs for use in output.uses()}
    if neighbours or consumers_too:
        neighbours |= {found[c].owner for c in consumers if c in found}
    if not neighbours:
        return False
    if not consumers_too and any(c not in found for c in consumers) and not consumers.isdisjoint(found):
        return False
    owner = calls.innermost_around(neighbours)
    if around is not None and not calls.encloses(around, owner):
        owner = around
    if len(neighbours) == 1 and owner in neighbours:
        found[node] = Attribution(
            owner,
            Kind.INFERRED,
            AGREEING_NEIGHBOURS,
            "nothing was recorded; all known neighbours belong to this call",
        )
    else:
        found[node] = Attribution(
            owner,
            Kind.INFERRED,
            COMMON_CALLER,
            "nothing was recorded; this is the innermost call around the neighbours' calls "
            + ", ".join(sorted(str(call) or "(root)" for call in neighbours)),
            tuple(sorted(neighbours - {owner})),
        )
    return True


def _without_neighbours(around: CallId | None) -> Attribution:
    if around is not None:
        return Attribution(
            around,
            Kind.INFERRED,
            COMMON_CALLER,
            "nothing was recorded; the node that holds this body is this call's",
        )
    return Attribution(
        ROOT_CALL,
        Kind.INFERRED,
        NO_EVIDENCE,
        "nothing was recorded and no neighbour is known: falls to the root",
    )


def _complete_functions(model: ir.Model, found: dict[ir.Node, Attribution], calls: CallTree) -> None:
    """A function's body serves all nodes that call it: the innermost call around those is its owner."""
    callers: dict[ir.OperatorIdentifier, set[CallId]] = {}
    pending = dict(model.functions)
    for node in model.graph.all_nodes():
        if node.op_identifier() in model.functions:
            callers.setdefault(node.op_identifier(), set()).add(found[node].owner)
    while pending:
        ready = [key for key in pending if key in callers] or list(pending)
        function = pending.pop(ready[0])
        served = callers.get(ready[0], {ROOT_CALL})
        owner = calls.innermost_around(served)
        others = tuple(sorted(served - {owner}))
        for node in function.all_nodes():
            if node not in found:
                found[node] = Attribution(
                    owner,
                    Kind.EXACT if len(served) == 1 else Kind.MERGED,
                    CERTAIN,
                    "the function of this node is called by this call alone"
                    if len(served) == 1
                    else "the function of this node serves several calls; this is the innermost around them",
                    others,
                )
            if node.op_identifier() in pending:
                callers.setdefault(node.op_identifier(), set()).update(served)
