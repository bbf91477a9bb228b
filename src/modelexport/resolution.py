"""Owners for nodes of which nobody recorded one, from data flow.

The owner is the smallest call that explains the node: the innermost call that encloses the calls its values come from
and those they serve. A node never crosses into another subtree than that one.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Collection, Iterable, Mapping

import msgspec
import onnx_ir as ir

from modelexport.attribution import Attribution, Kind
from modelexport.graph import graph_bodies, nodes_within
from modelexport.hierarchy import ROOT_CALL, CallId, CallTree

# What each confidence stands for is in docs/attribution.md.
CERTAIN = 1.0
ONE_REGION = 0.9
AGREEING_NEIGHBOURS = 0.8
ONE_SIDE = 0.6
COMMON_CALLER = 0.5
NO_EVIDENCE = 0.1

# A node that serves more calls than this serves their innermost common caller: without a limit, long chains of
# unknown nodes would carry ever larger sets along.
_MOST_CALLS = 64


@dataclasses.dataclass(frozen=True)
class ResolutionPolicy:
    """How far nodes that nobody recorded an owner for are reasoned about.

    Attributes:
        advanced: Whether data flow decides. Without it such a node falls to the root, or to the call of the node
            whose body holds it.
        boundaries: The paths of modules that no reasoning may cross. Seen from outside, such a module is one thing:
            what enters and leaves it belongs to whoever called it, and only nodes with evidence on all sides inside
            of it are its own.
    """

    advanced: bool = True
    boundaries: frozenset[str] = frozenset()


DEFAULT_POLICY = ResolutionPolicy()


def complete(
    model: ir.Model,
    known: Mapping[ir.Node, Attribution],
    calls: CallTree,
    policy: ResolutionPolicy = DEFAULT_POLICY,
) -> dict[ir.Node, Attribution]:
    """`known`, with an inferred attribution for every node of the model that it misses."""
    found = dict(known)
    resolver = _Resolver(found, calls, policy)
    resolver.complete_graph(model.graph)
    if model.functions:
        _complete_functions(model, found, calls)
    return found


def add_contexts(model: ir.Model, found: Mapping[ir.Node, Attribution]) -> dict[ir.Node, Attribution]:
    """The attributions, each node that joins results of several calls with those calls as its context."""
    joined = dict(found)
    for node in nodes_within(model.graph):
        owners = {found[maker].owner for value in node.inputs if value is not None and (maker := value.producer())}
        if len(owners) > 1:
            own = found[node]
            joined[node] = msgspec.structs.replace(own, context=tuple(sorted(owners - {own.owner})))
    return joined


@dataclasses.dataclass(frozen=True)
class _Evidence:
    """The calls that a node's values come from, and those they serve.

    `one_side` says that only one of the two is known although the node has both.
    """

    sources: frozenset[CallId]
    served: frozenset[CallId]
    one_side: bool

    @property
    def calls(self) -> frozenset[CallId]:
        return self.sources | self.served


class _Resolver:
    def __init__(self, found: dict[ir.Node, Attribution], calls: CallTree, policy: ResolutionPolicy) -> None:
        self._found = found
        self._calls = calls
        self._policy = policy

    def complete_graph(self, graph: ir.Graph) -> None:
        """Complete a graph and the bodies in it, each after the graph around it."""
        waiting: list[tuple[ir.Graph, CallId | None]] = [(graph, None)]
        while waiting:
            current, around = waiting.pop()
            missing = [node for node in current if node not in self._found]
            if self._policy.advanced:
                self._resolve(missing, current, around)
            else:
                for node in missing:
                    self._found[node] = _without_evidence(around)
            for node in current:
                waiting.extend((body, self._found[node].owner) for _, body in graph_bodies(node))

    def _resolve(self, missing: list[ir.Node], graph: ir.Graph, around: CallId | None) -> None:
        """Evidence travels along chains of unknown nodes, down from known producers and up from known consumers."""
        unknown = set(missing)
        sources: dict[ir.Node, frozenset[CallId]] = {}
        for node in missing:
            makers = {value.producer() for value in node.inputs if value is not None}
            # What a body reads from outside says who made it, not who runs the body.
            inside = [maker for maker in makers if maker is not None and maker.graph is graph]
            sources[node] = self._gather(inside, unknown, sources)
        served: dict[ir.Node, frozenset[CallId]] = {}
        for node in reversed(missing):
            readers = [use.node for output in node.outputs for use in output.uses()]
            readers.extend(inner for _, body in graph_bodies(node) for inner in body)
            served[node] = self._gather(readers, unknown, served)
        for node in missing:
            has_makers = any(value is not None and value.producer() is not None for value in node.inputs)
            # A constant has consumers only: they are all the evidence there can be.
            one_side = not served[node] or (has_makers and not sources[node])
            self._found[node] = self._infer(_Evidence(sources[node], served[node], one_side), around)

    def _gather(
        self,
        neighbours: Iterable[ir.Node],
        unknown: Collection[ir.Node],
        reached: Mapping[ir.Node, frozenset[CallId]],
    ) -> frozenset[CallId]:
        gathered: set[CallId] = set()
        for neighbour in neighbours:
            if neighbour in unknown:
                gathered |= reached.get(neighbour, frozenset())
            elif neighbour in self._found:
                gathered.add(self._found[neighbour].owner)
        if len(gathered) > _MOST_CALLS:
            return frozenset({self._calls.innermost_around(gathered)})
        return frozenset(gathered)

    def _infer(self, evidence: _Evidence, around: CallId | None) -> Attribution:
        if not evidence.calls:
            return _without_evidence(around)
        seen = self._seen_across_boundaries(evidence, around)
        owner = self._calls.innermost_around(seen)
        if around is not None and not self._calls.encloses(around, owner):
            owner = around
        names = ", ".join(sorted(str(call) or "(root)" for call in seen))
        if seen != {owner}:
            reason = f"nothing was recorded; this is the innermost call around the neighbours' calls {names}"
            return Attribution(owner, Kind.INFERRED, COMMON_CALLER, reason, tuple(sorted(seen - {owner})))
        if evidence.one_side:
            side = "its values come from" if evidence.sources else "its values serve"
            reason = f"nothing was recorded; all that is known is that {side} this call"
            return Attribution(owner, Kind.INFERRED, ONE_SIDE, reason)
        reason = "nothing was recorded; all known neighbours belong to this call"
        return Attribution(owner, Kind.INFERRED, AGREEING_NEIGHBOURS, reason)

    def _seen_across_boundaries(self, evidence: _Evidence, around: CallId | None) -> set[CallId]:
        """The evidence as it looks from where the node stands: a boundary that is not around all of it hides what
        is inside, and shows its caller instead."""
        if not self._policy.boundaries:
            return set(evidence.calls)
        inside = around if around is not None else ROOT_CALL
        if not evidence.one_side:
            inside = self._calls.innermost_around(evidence.calls)
        return {self._outside(call, inside) for call in evidence.calls}

    def _outside(self, call: CallId, inside: CallId) -> CallId:
        """`call`, or the caller of the outermost boundary that `call` ran inside of and `inside` did not."""
        entered = set(self._calls.chain(inside))
        visible = call
        for outer in self._calls.chain(call):
            caller = self._calls[outer].parent
            if outer not in entered and outer.path in self._policy.boundaries and caller is not None:
                visible = caller
        return visible


def _without_evidence(around: CallId | None) -> Attribution:
    if around is not None:
        reason = "nothing was recorded; the node that holds this body is this call's"
        return Attribution(around, Kind.INFERRED, COMMON_CALLER, reason)
    reason = "nothing was recorded and no neighbour is known: falls to the root"
    return Attribution(ROOT_CALL, Kind.INFERRED, NO_EVIDENCE, reason)


def _complete_functions(model: ir.Model, found: dict[ir.Node, Attribution], calls: CallTree) -> None:
    """A function's body serves all nodes that call it: the innermost call around those is its owner."""
    users: dict[ir.OperatorIdentifier, list[Attribution]] = {}
    for node in model.graph.all_nodes():
        if node.op_identifier() in model.functions:
            users.setdefault(node.op_identifier(), []).append(found[node])
    for key in _callers_first(model):
        shared = _shared_by(users.get(key, []), calls)
        for node in model.functions[key].all_nodes():
            own = found.setdefault(node, shared)
            if node.op_identifier() in model.functions:
                users.setdefault(node.op_identifier(), []).append(own)


def _callers_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """The functions, each behind those that call it; in the model's order where they call each other in a circle."""
    order: graphlib.TopologicalSorter[ir.OperatorIdentifier] = graphlib.TopologicalSorter()
    for key, function in model.functions.items():
        order.add(key)
        for node in function.all_nodes():
            if node.op_identifier() in model.functions:
                order.add(node.op_identifier(), key)
    try:
        return list(order.static_order())
    except graphlib.CycleError:
        return list(model.functions)


def _shared_by(users: list[Attribution], calls: CallTree) -> Attribution:
    """The attribution of what these nodes use together."""
    if not users:
        reason = "nothing calls the function of this node: falls to the root"
        return Attribution(ROOT_CALL, Kind.INFERRED, NO_EVIDENCE, reason)
    served = {call for user in users for call in (user.owner, *user.contributors)}
    owners = {user.owner for user in users}
    owner = calls.innermost_around(owners)
    confidence = min(user.confidence for user in users)
    if len(owners) > 1:
        reason = "the function of this node serves several calls; this is the innermost around them"
        return Attribution(owner, Kind.MERGED, confidence, reason, tuple(sorted(served - {owner})))
    kinds = {user.kind for user in users}
    kind = kinds.pop() if len(kinds) == 1 else Kind.INFERRED
    reason = "the function of this node is called by this call alone"
    return Attribution(owner, kind, confidence, reason, tuple(sorted(served - {owner})))
