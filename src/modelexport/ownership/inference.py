"""Inference of owners from data flow, for nodes without a recorded one.

The owner is the smallest call that explains the node: the innermost common caller of the calls that compute its inputs
and of those that consume its outputs. A node never crosses into another subtree than that one.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Collection, Iterable, Mapping

import msgspec
import onnx_ir as ir

from modelexport.graph import nodes_of, subgraphs_of
from modelexport.hierarchy import ROOT_CALL, Attribution, CallId, CallTree, confidence

# More calls than this are replaced by their innermost common caller: without a limit, long chains of unknown nodes
# would accumulate ever larger sets.
_MAX_CALLS = 64


@dataclasses.dataclass(frozen=True)
class InferencePolicy:
    """How owners are inferred for nodes without a recorded one.

    Attributes:
        advanced: Whether to use data flow. Otherwise such a node belongs to the root, or to the call of the node that
            owns its subgraph.
        boundaries: The paths of modules that inference must not cross. A node at the edge of such a module belongs to
            its caller; only a node with all its evidence inside the module belongs to the module.
    """

    advanced: bool = True
    boundaries: frozenset[str] = frozenset()


DEFAULT_POLICY = InferencePolicy()


def infer_missing(
    model: ir.Model,
    known: Mapping[ir.Node, Attribution],
    calls: CallTree,
    policy: InferencePolicy = DEFAULT_POLICY,
) -> dict[ir.Node, Attribution]:
    """`known`, plus an inferred attribution for every other node of the model."""
    found = dict(known)
    _Inference(found, calls, policy).complete_graph(model.graph)
    if model.functions:
        _complete_functions(model, found, calls)
    return found


def add_contexts(model: ir.Model, found: Mapping[ir.Node, Attribution]) -> dict[ir.Node, Attribution]:
    """The attributions, with the calls of a node's producers as its context where they are several."""
    joined = dict(found)
    for node in nodes_of(model.graph):
        producers = [producer for value in node.inputs if value is not None and (producer := value.producer())]
        owners = {found[producer].owner for producer in producers}
        if len(owners) > 1:
            own = found[node]
            joined[node] = msgspec.structs.replace(own, context=tuple(sorted(owners - {own.owner})))
    return joined


class _Inference:
    def __init__(self, found: dict[ir.Node, Attribution], calls: CallTree, policy: InferencePolicy) -> None:
        self._found = found
        self._calls = calls
        self._policy = policy

    def complete_graph(self, graph: ir.Graph) -> None:
        """Complete a graph and its subgraphs, each after the graph around it."""
        waiting: list[tuple[ir.Graph, CallId | None]] = [(graph, None)]
        while waiting:
            current, around = waiting.pop()
            missing = [node for node in current if node not in self._found]
            if self._policy.advanced:
                self._infer_nodes(missing, current, around)
            else:
                for node in missing:
                    self._found[node] = confidence.without_evidence(around)
            for node in current:
                waiting.extend((subgraph, self._found[node].owner) for _, subgraph in subgraphs_of(node))

    def _infer_nodes(self, missing: list[ir.Node], graph: ir.Graph, around: CallId | None) -> None:
        """Propagate evidence along chains of unknown nodes, from known producers and from known consumers."""
        unknown = set(missing)
        sources: dict[ir.Node, frozenset[CallId]] = {}
        for node in missing:
            producers = {value.producer() for value in node.inputs if value is not None}
            # A value from outside a subgraph is evidence of its producer, not of the call that runs the subgraph.
            inside = [producer for producer in producers if producer is not None and producer.graph is graph]
            sources[node] = self._gather(inside, unknown, sources)
        served: dict[ir.Node, frozenset[CallId]] = {}
        for node in reversed(missing):
            consumers = [use.node for output in node.outputs for use in output.uses()]
            consumers.extend(inner for _, subgraph in subgraphs_of(node) for inner in subgraph)
            served[node] = self._gather(consumers, unknown, served)
        for node in missing:
            has_producers = any(value is not None and value.producer() is not None for value in node.inputs)
            # A constant has consumers only: no other evidence is possible.
            one_side = not served[node] or (has_producers and not sources[node])
            self._found[node] = self._infer(sources[node], served[node], one_side, around)

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
        if len(gathered) > _MAX_CALLS:
            return frozenset({self._calls.innermost_around(gathered)})
        return frozenset(gathered)

    def _infer(
        self, sources: frozenset[CallId], served: frozenset[CallId], one_side: bool, around: CallId | None
    ) -> Attribution:
        """Infer an owner from the calls that a node's inputs come from, and those that consume its outputs.

        `one_side` says that only one of the two is known although the node has both.
        """
        if not sources | served:
            return confidence.without_evidence(around)
        seen = self._seen_across_boundaries(sources | served, one_side, around)
        owner = self._calls.innermost_around(seen)
        if around is not None and not self._calls.encloses(around, owner):
            owner = around
        if seen != {owner}:
            return confidence.neighbours_of_several_calls(owner, seen)
        if one_side:
            return confidence.producers_only(owner) if sources else confidence.consumers_only(owner)
        return confidence.agreeing_neighbours(owner)

    def _seen_across_boundaries(self, calls: frozenset[CallId], one_side: bool, around: CallId | None) -> set[CallId]:
        """The calls, with each inside a boundary that the node is outside of replaced by the boundary's caller."""
        if not self._policy.boundaries:
            return set(calls)
        inside = around if around is not None else ROOT_CALL
        if not one_side:
            inside = self._calls.innermost_around(calls)
        return {self._outside(call, inside) for call in calls}

    def _outside(self, call: CallId, inside: CallId) -> CallId:
        """`call`, or the caller of the outermost boundary that `call` ran inside of and `inside` did not."""
        entered = set(self._calls.chain(inside))
        visible = call
        for outer in self._calls.chain(call):
            caller = self._calls[outer].parent
            if outer not in entered and outer.path in self._policy.boundaries and caller is not None:
                visible = caller
        return visible


def _complete_functions(model: ir.Model, found: dict[ir.Node, Attribution], calls: CallTree) -> None:
    """Attribute the nodes of local functions to the innermost common caller of the nodes that call the function."""
    users: dict[ir.OperatorIdentifier, list[Attribution]] = {}
    for node in model.graph.all_nodes():
        if node.op_identifier() in model.functions:
            users.setdefault(node.op_identifier(), []).append(found[node])
    for key in _callers_first(model):
        known = users.get(key)
        shared = confidence.in_function(known, calls) if known else confidence.in_unused_function()
        for node in model.functions[key].all_nodes():
            own = found.setdefault(node, shared)
            if node.op_identifier() in model.functions:
                users.setdefault(node.op_identifier(), []).append(own)


def _callers_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """The functions, each after those that call it; in the model's order where they call each other in a cycle."""
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
