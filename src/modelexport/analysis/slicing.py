"""Backward slices of a graph: what it takes to compute some tensors from others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

import onnx_ir as ir

from modelexport.graph import graph_bodies, identified_nodes


@dataclasses.dataclass(frozen=True)
class Slice:
    """What computes some tensors from others.

    Attributes:
        nodes: The nodes, in graph order; those of bodies are part of the node that holds the body.
        weights: The stored tensors that they read.
        reached: Those of the given tensors that they start from.
        further: Tensors that they start from as well, though they were not given.
    """

    nodes: tuple[ir.Node, ...]
    weights: tuple[ir.Value, ...]
    reached: frozenset[ir.Value]
    further: tuple[ir.Value, ...]


class Slicer:
    """Cuts slices out of one model. The model must not change meanwhile."""

    def __init__(self, model: ir.Model) -> None:
        self._order = {node: place for place, (_, node) in enumerate(identified_nodes(model))}
        self._reads: dict[ir.Node, tuple[ir.Value, ...]] = {}

    def reads(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """The values a node reads: its inputs, and what its bodies read from the graphs around them."""
        known = self._reads.get(node)
        if known is None:
            known = self._reads[node] = tuple(dict.fromkeys(read_values(node)))
        return known

    def cut(
        self, results: Iterable[ir.Value], given: Collection[ir.Value], is_inside: Callable[[ir.Node], bool]
    ) -> Slice:
        """The slice from `results` back to `given`.

        A way back may pass all that is given and end at an input of the model. Then something is read that was not
        given, and the slice starts there too: at the last tensor on the way that nothing inside had a part in.

        Args:
            results: The tensors to compute.
            given: The tensors to start from.
            is_inside: Whether a node is part of what is cut out. Other nodes on the way are copied along.
        """
        stops = set(given)
        results = list(results)
        open_ended, inner = self._judge(results, stops, is_inside)
        nodes: set[ir.Node] = set()
        weights: dict[ir.Value, None] = {}
        reached: set[ir.Value] = set()
        further: dict[ir.Value, None] = {}
        waiting, seen = results[::-1], set(results)
        while waiting:
            value = waiting.pop()
            producer = value.producer()
            if value in stops:
                reached.add(value)
            elif producer is None:
                (weights if value.is_initializer() else further)[value] = None
            elif producer in open_ended and producer not in inner:
                further[value] = None
            elif producer not in nodes:
                nodes.add(producer)
                fresh = [read for read in self.reads(producer) if read not in seen]
                seen.update(fresh)
                waiting.extend(reversed(fresh))
        ordered = sorted(nodes, key=self._order.__getitem__)
        return Slice(tuple(ordered), tuple(weights), frozenset(reached), tuple(further))

    def _judge(
        self, results: list[ir.Value], stops: set[ir.Value], is_inside: Callable[[ir.Node], bool]
    ) -> tuple[set[ir.Node], set[ir.Node]]:
        """Of the nodes behind `results`: those that need more than the stops, and those with something inside."""
        open_ended: set[ir.Node] = set()
        inner: set[ir.Node] = set()
        done: set[ir.Node] = set()
        stack: list[tuple[ir.Node, list[ir.Value]]] = []
        entered: set[ir.Node] = set()

        def enter(value: ir.Value) -> None:
            producer = value.producer()
            if value not in stops and producer is not None and producer not in entered:
                entered.add(producer)
                stack.append((producer, [read for read in self.reads(producer) if read not in stops]))

        for result in results:
            enter(result)
            while stack:
                node, left = stack[-1]
                if left:
                    enter(left.pop())
                    continue
                stack.pop()
                done.add(node)
                sources = [(value, value.producer()) for value in self.reads(node) if value not in stops]
                if any(s in open_ended if s is not None else not value.is_initializer() for value, s in sources):
                    open_ended.add(node)
                if is_inside(node) or any(s in inner for _, s in sources if s is not None):
                    inner.add(node)
        return open_ended, inner

    def depends_on(self, value: ir.Value, sources: Collection[ir.Value]) -> bool:
        """Whether `value` is computed from one of `sources`, near or far."""
        waiting, seen = [value], {value}
        while waiting:
            producer = waiting.pop().producer()
            for read in self.reads(producer) if producer is not None else ():
                if read in sources:
                    return True
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)
        return False


def read_values(node: ir.Node) -> list[ir.Value]:
    """The values a node reads: its inputs, and what its bodies read from the graphs around them."""
    values = [value for value in node.inputs if value is not None]
    bodies = [body for _, body in graph_bodies(node)]
    if not bodies:
        return values
    inside: set[ir.Graph | ir.Function | None] = set()
    read: list[ir.Value] = []
    while bodies:
        body = bodies.pop()
        inside.add(body)
        for inner in body:
            bodies.extend(deeper for _, deeper in graph_bodies(inner))
            read.extend(value for value in inner.inputs if value is not None)
        read.extend(body.outputs)
    return values + [value for value in read if value.graph not in inside]


def depends_on_inputs(model: ir.Model) -> set[ir.Value]:
    """The values that depend on an input of the model, or of a body that hold them."""
    found: set[ir.Value] = {value for value in model.graph.inputs if not value.is_initializer()}
    nodes = [node for _, node in identified_nodes(model)]
    for node in nodes:
        # A body comes after the node that holds it, and its inputs change from run to run.
        found.update(value for _, body in graph_bodies(node) for value in body.inputs)
    for node in nodes:
        if any(value in found for value in read_values(node)):
            found.update(node.outputs)
    return found


def leaving(
    nodes: Iterable[ir.Node], is_inside: Callable[[ir.Node], bool], calls: Mapping[ir.Node, Collection[str]]
) -> list[ir.Value]:
    """The values that nodes inside make and others read, or that are results of their graph.

    A node that equal nodes of several calls became serves each of them: what another of these calls reads of it did
    not leave this one.
    """
    found: dict[ir.Value, None] = {}
    for node in nodes:
        served = set(calls.get(node, ()))
        for value in node.outputs:
            readers = [use.node for use in value.uses()]
            outside = [reader for reader in readers if not is_inside(reader)]
            if value.is_graph_output() or any(served.isdisjoint(calls.get(reader, ())) for reader in outside):
                found[value] = None
    return list(found)
