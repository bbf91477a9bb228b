"""What is read in place of a tensor that a rewriting removed.

An optimizer that takes out a node (an expansion that broadcasting does anyway, the first of two reshapes) lets the
readers of its result read something else. Where each reader still does the same operation with the same other inputs,
the removed tensor could be put back in that place: the reader would compute what it computed before. So a module that
was given the tensor can still be cut out, with the tensor as its input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from modelexport.attribution import Attribution
from modelexport.hierarchy import BoundaryTensor, CallId, CallTree
from modelexport.numbering import attributes_key

_SMALL = 1024


@dataclasses.dataclass(frozen=True)
class StandIn:
    """The tensor that is read in place of a removed one, and where: each reader with the place of the input."""

    value: ir.Value
    uses: frozenset[tuple[ir.Node, int]]


def find_stand_ins(
    first: ir.Model,
    rewritten: ir.Model,
    tensors: Mapping[str, str],
    calls: CallTree,
    owners: Mapping[ir.Node, Attribution],
) -> Callable[[CallId, BoundaryTensor], str | None]:
    """A function that gives the stand-in for an input of a call which the rewritten graph no longer has.

    Args:
        first: The graph before it was rewritten, in whose tensors the boundaries of `calls` are.
        rewritten: The graph that came out.
        tensors: Where the first graph's tensors are in the rewritten one.
        calls: The module calls.
        owners: The attribution of the rewritten graph's nodes.
    """
    before = _named(first.graph)
    after = _named(rewritten.graph)
    known: dict[str, StandIn | None] = {}
    inside = _readers_by_call(calls, owners)

    def stand_in(call: CallId, tensor: BoundaryTensor) -> str | None:
        name = tensor.tensor
        if name is None or name in tensors or name not in before:
            return None
        if name not in known:
            known[name] = _find(before[name], before, after, tensors)
        found = known[name]
        if found is None:
            return None
        # What the call reads of it must all be read in place of the removed tensor, and none for its own sake.
        own = inside(call)
        for use in found.value.uses():
            if use.node in own and (use.node, use.idx) not in found.uses:
                return None
        return found.value.name

    return stand_in


def _find(
    value: ir.Value, before: Mapping[str, ir.Value], after: Mapping[str, ir.Value], tensors: Mapping[str, str]
) -> StandIn | None:
    if value.is_graph_output():
        return None
    found: set[ir.Value] = set()
    uses: set[tuple[ir.Node, int]] = set()
    for use in value.uses():
        reader = _counterpart(use.node, after, tensors)
        if reader is None or not _reads_the_same(use.node, reader, value, after, tensors):
            return None
        read = reader.inputs[use.idx]
        if read is None:
            return None
        found.add(read)
        uses.add((reader, use.idx))
    return StandIn(found.pop(), frozenset(uses)) if len(found) == 1 else None


def _counterpart(node: ir.Node, after: Mapping[str, ir.Value], tensors: Mapping[str, str]) -> ir.Node | None:
    """The rewritten graph's node that makes the same outputs by the same operation."""
    for output in node.outputs:
        value = after.get(tensors.get(output.name or "", ""))
        producer = value.producer() if value is not None else None
        if (
            producer is not None
            and producer.op_identifier() == node.op_identifier()
            and len(producer.inputs) == len(node.inputs)
            and attributes_key(producer) == attributes_key(node)
        ):
            return producer
    return None


def _reads_the_same(
    node: ir.Node, reader: ir.Node, removed: ir.Value, after: Mapping[str, ir.Value], tensors: Mapping[str, str]
) -> bool:
    """Whether all that the two read is the same, the removed tensor aside."""
    for original, own in zip(node.inputs, reader.inputs, strict=True):
        if original is removed:
            continue
        if original is None or own is None:
            if original is not own:
                return False
        elif after.get(tensors.get(original.name or "", "")) is not own and not _same_constant(original, own):
            return False
    return True


def _same_constant(one: ir.Value, other: ir.Value) -> bool:
    first, second = ir.convenience.get_const_tensor(one), ir.convenience.get_const_tensor(other)
    if first is None or second is None or first.dtype != second.dtype or list(first.shape) != list(second.shape):
        return False
    if first.dtype == ir.DataType.STRING or first.nbytes > _SMALL:
        return False
    return first.tobytes() == second.tobytes()


def _readers_by_call(calls: CallTree, owners: Mapping[ir.Node, Attribution]) -> Callable[[CallId], frozenset[ir.Node]]:
    """A function that gives the nodes that work for a call or for one inside of it."""
    nodes: dict[CallId, list[ir.Node]] = {}
    for node, owner in owners.items():
        for call in (owner.owner, *owner.contributors):
            nodes.setdefault(call, []).append(node)
    known: dict[CallId, frozenset[ir.Node]] = {}

    def inside(call: CallId) -> frozenset[ir.Node]:
        if call not in known:
            within: Iterable[CallId] = (other for other in nodes if calls.encloses(call, other))
            known[call] = frozenset(node for other in within for node in nodes[other])
        return known[call]

    return inside


def _named(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values()]
    values.extend(value for node in graph for value in node.outputs)
    return {value.name: value for value in values if value.name}
