"""Backward slices of a graph: the nodes that compute some tensors from others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from modelexport.graph import consumed_values, subgraphs_of


@dataclasses.dataclass(frozen=True)
class Slice:
    """The nodes that compute some tensors from others, sorted, and what they consume.

    `used_inputs` are those of the given inputs that they consume, `extra_inputs` tensors that they also start from.
    Nodes of a subgraph belong to the node that owns the subgraph.
    """

    nodes: tuple[ir.Node, ...]
    initializers: tuple[ir.Value, ...]
    used_inputs: frozenset[ir.Value]
    extra_inputs: tuple[ir.Value, ...]


class Slicer:
    """Computes slices of one model, given its nodes, those of subgraphs included. It must not change meanwhile."""

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._consumed: dict[ir.Node, tuple[ir.Value, ...]] = {}
        self._order = self._sorted(nodes)

    def _sorted(self, nodes: Iterable[ir.Node]) -> dict[ir.Node, int]:
        """The position of each node, after its producers: some converters leave nodes unsorted."""
        order: dict[ir.Node, int] = {}
        entered: set[ir.Node] = set()
        for start in nodes:
            stack = [start]
            while stack:
                node = stack[-1]
                if node not in entered:
                    entered.add(node)
                    producers = (value.producer() for value in self.consumed(node))
                    stack.extend(producer for producer in producers if producer is not None and producer not in entered)
                else:
                    order.setdefault(stack.pop(), len(order))
        return order

    def consumed(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """The values a node consumes, those that its subgraphs consume included; computed once for each node."""
        known = self._consumed.get(node)
        if known is None:
            known = self._consumed[node] = tuple(dict.fromkeys(consumed_values(node)))
        return known

    def backward(
        self, outputs: Iterable[ir.Value], given: Collection[ir.Value], is_inside: Callable[[ir.Node], bool]
    ) -> Slice:
        """The slice from `outputs` back to `given`.

        A path back may miss everything given and end at an input of the model. Then the module consumes something
        that it was not given, and the slice starts there too: at the last tensor on the path that no node inside
        contributed to. Nodes on the path that are not inside, so not of the module, are copied along.
        """
        stops = set(given)
        outputs = list(outputs)
        open_ended, inner = self._classify(outputs, stops, is_inside)
        nodes: set[ir.Node] = set()
        initializers: dict[ir.Value, None] = {}
        used: set[ir.Value] = set()
        extra: dict[ir.Value, None] = {}
        waiting, seen = outputs[::-1], set(outputs)
        while waiting:
            value = waiting.pop()
            producer = value.producer()
            if value in stops:
                used.add(value)
            elif producer is None:
                (initializers if value.is_initializer() else extra)[value] = None
            elif producer in open_ended and producer not in inner:
                extra[value] = None
            elif producer not in nodes:
                nodes.add(producer)
                fresh = [consumed for consumed in self.consumed(producer) if consumed not in seen]
                seen.update(fresh)
                waiting.extend(reversed(fresh))
        ordered = sorted(nodes, key=self._order.__getitem__)
        return Slice(tuple(ordered), tuple(initializers), frozenset(used), tuple(extra))

    def _classify(
        self, outputs: list[ir.Value], stops: set[ir.Value], is_inside: Callable[[ir.Node], bool]
    ) -> tuple[set[ir.Node], set[ir.Node]]:
        """Of the nodes behind `outputs`: those that need more than the stops, and those fed by a node inside."""
        open_ended: set[ir.Node] = set()
        inner: set[ir.Node] = set()
        entered: set[ir.Node] = set()
        stack: list[tuple[ir.Node, list[ir.Value]]] = []

        def enter(value: ir.Value) -> None:
            producer = value.producer()
            if value not in stops and producer is not None and producer not in entered:
                entered.add(producer)
                stack.append((producer, [consumed for consumed in self.consumed(producer) if consumed not in stops]))

        for output in outputs:
            enter(output)
            while stack:
                node, left = stack[-1]
                if left:
                    enter(left.pop())
                    continue
                stack.pop()
                sources = [(value, value.producer()) for value in self.consumed(node) if value not in stops]
                if any(s in open_ended if s is not None else not value.is_initializer() for value, s in sources):
                    open_ended.add(node)
                if is_inside(node) or any(s in inner for _, s in sources if s is not None):
                    inner.add(node)
        return open_ended, inner

    def depends_on(self, value: ir.Value, sources: Collection[ir.Value]) -> bool:
        """Whether `value` is computed from one of `sources`, directly or indirectly."""
        waiting, seen = [value], {value}
        while waiting:
            producer = waiting.pop().producer()
            for consumed in self.consumed(producer) if producer is not None else ():
                if consumed in sources:
                    return True
                if consumed not in seen:
                    seen.add(consumed)
                    waiting.append(consumed)
        return False


def input_dependent_values(model: ir.Model, nodes: Sequence[ir.Node]) -> set[ir.Value]:
    """The values that depend on an input of the model, or of the subgraph they are in, given all its nodes."""
    found: set[ir.Value] = {value for value in model.graph.inputs if not value.is_initializer()}
    for node in nodes:
        # A subgraph comes after its owning node, and its inputs change from run to run.
        found.update(value for _, subgraph in subgraphs_of(node) for value in subgraph.inputs)
    for node in nodes:
        if any(value in found for value in consumed_values(node)):
            found.update(node.outputs)
    return found


def values_leaving(
    nodes: Iterable[ir.Node], is_inside: Callable[[ir.Node], bool], calls: Mapping[ir.Node, Collection[str]]
) -> list[ir.Value]:
    """The values that nodes inside produce and others consume, or that are outputs of their graph.

    A merged node belongs to several calls: a value that another of these calls consumes did not leave this one.
    """
    found: dict[ir.Value, None] = {}
    for node in nodes:
        served = set(calls.get(node, ()))
        for value in node.outputs:
            consumers = [use.node for use in value.uses()]
            outside = [consumer for consumer in consumers if not is_inside(consumer)]
            if value.is_graph_output() or any(served.isdisjoint(calls.get(consumer, ())) for consumer in outside):
                found[value] = None
    return list(found)
