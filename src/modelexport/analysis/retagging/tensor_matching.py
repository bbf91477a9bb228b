"""Which tensor of one graph is which of another that computes the same, where the names say nothing.

Tensors that no others are equal to are known by their values. From them on, data flow tells: what the same operations
read and make at the same places, as far as the values agree. Equal tensors that neither tells apart are left out.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from modelexport.analysis.retagging.tensor_values import Fingerprints
from modelexport.graph import ValueIndex, attributes_key, subgraphs_of

# Constants that hundreds of nodes read say nothing of any one of them.
_MOST_READERS = 256


def match_tensors(
    first: ir.Model,
    first_values: Fingerprints,
    second: ir.Model,
    second_values: Fingerprints,
    inputs: Iterable[tuple[ir.Value, ir.Value]],
) -> dict[ir.Value, ir.Value]:
    """For tensors of the second graph those of the first that they are; no tensor stands for two.

    Args:
        first: The first model.
        first_values: What its tensors hold.
        second: The second model.
        second_values: What its tensors hold, on the same inputs.
        inputs: The inputs of both that are the same, the first's first.
    """
    matcher = _Matcher(first.graph, first_values, second.graph, second_values)
    for own, other in inputs:
        matcher.pair(other, own)
    matcher.pair_by_values_alone()
    for own, other in zip(first.graph.outputs, second.graph.outputs, strict=False):
        if matcher.agree(other, own):
            matcher.pair(other, own)
    matcher.settle()
    return matcher.found


class _Matcher:
    def __init__(
        self, first: ir.Graph, first_values: Fingerprints, second: ir.Graph, second_values: Fingerprints
    ) -> None:
        self.found: dict[ir.Value, ir.Value] = {}
        self._taken: set[ir.Value] = set()
        self._waiting: collections.deque[tuple[ir.Value, ir.Value]] = collections.deque()
        self._first_values = first_values
        self._second_values = second_values
        self._first = list(_values(first))
        self._second = list(_values(second))
        self._index = ValueIndex([first_values.get(value) for value in self._first])
        self._equal: dict[object, list[ir.Value]] = {}
        self._alike: dict[tuple[int, ...], list[ir.Value]] = {}

    def pair(self, second: ir.Value, first: ir.Value) -> None:
        """Take two tensors for the same, and follow data flow from there."""
        self._enter(second, first)
        while self._waiting:
            ours, theirs = self._waiting.popleft()
            self._follow_back(ours, theirs)
            self._follow_on(ours, theirs)

    def agree(self, second: ir.Value, first: ir.Value) -> bool:
        """Whether two tensors may be the same as far as their values are known."""
        ours, theirs = self._second_values.get(second), self._first_values.get(first)
        if ours is not None and theirs is not None:
            return ours.same_order(theirs)
        return ours is theirs

    def pair_by_values_alone(self) -> None:
        """Pair the tensors that equal one tensor of the other graph, and no other one does."""
        wanted = [value for value in self._second if self._is_telling(value)]
        claims = collections.Counter(theirs for value in wanted for theirs in self._candidates(value))
        for value in wanted:
            candidates = self._candidates(value)
            if len(candidates) == 1 and claims[candidates[0]] == 1:
                self.pair(value, candidates[0])

    def settle(self) -> None:
        """Tell equal tensors apart by data flow, the surest first, for as long as anything is found."""
        rounds = (self._by_operation_and_inputs, self._by_operation, self._first_of_several)
        position = 0
        while position < len(rounds):
            before = len(self.found)
            rounds[position]()
            position = 0 if len(self.found) > before else position + 1

    def _by_operation_and_inputs(self) -> None:
        """The same operation on the same tensors, which no other equal tensor comes from."""
        for value, candidates in self._left():
            fitting = [c for c in candidates if self._is_made_alike(value, c)]
            if len(fitting) == 1 or (fitting and self._are_read_in_order(value, fitting)):
                self.pair(value, fitting[0])

    def _by_operation(self) -> None:
        """The same operation, where as many tensors as before equal each other."""
        for value, candidates in self._left():
            if self._is_telling(value):
                fitting = [c for c in candidates if _operation(c) == _operation(value) is not None]
                rivals = [v for v in self._rivals(value) if _operation(v) == _operation(value)]
                if len(fitting) == 1 == len(rivals):
                    self.pair(value, fitting[0])

    def _first_of_several(self) -> None:
        """What one tensor holds now, several held before: those that only pass it on are gone."""
        for value, candidates in self._left():
            fitting = [c for c in candidates if self._have_one_shape(value, c)]
            if fitting and self._is_telling(value) and len(self._rivals_in_shape(value)) == 1:
                self.pair(value, fitting[0])

    def _shape(self, second: ir.Value) -> tuple[int, ...]:
        return self._second_values[second].shape

    def _have_one_shape(self, second: ir.Value, first: ir.Value) -> bool:
        return self._shape(second) == self._first_values[first].shape

    def _left(self) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
        for value in self._second:
            if value not in self.found:
                yield value, [c for c in self._candidates(value) if c not in self._taken]

    def _rivals(self, value: ir.Value) -> list[ir.Value]:
        """The tensors of the second graph that are not known yet and equal the same ones, itself included."""
        if not self._alike:
            for other in self._second:
                self._alike.setdefault(self._group(other), []).append(other)
        return [other for other in self._alike[self._group(value)] if other not in self.found]

    def _rivals_in_shape(self, value: ir.Value) -> list[ir.Value]:
        return [other for other in self._rivals(value) if self._shape(other) == self._shape(value)]

    def _group(self, value: ir.Value) -> tuple[int, ...]:
        return tuple(id(candidate) for candidate in self._candidates(value))

    def _is_telling(self, value: ir.Value) -> bool:
        known = self._second_values.get(value)
        return known is not None and known.is_distinctive

    def _candidates(self, value: ir.Value) -> list[ir.Value]:
        """The tensors of the first graph that hold the same in the same order, as the graph makes them."""
        wanted = self._second_values.get(value)
        if wanted is None:
            return []
        key = (wanted.group, wanted.features.tobytes(), wanted.tolerance)
        if key not in self._equal:
            found = [self._first[number] for number in self._index.find(wanted)]
            self._equal[key] = [v for v in found if wanted.same_order(self._first_values[v])]
        return self._equal[key]

    def _is_made_alike(self, second: ir.Value, first: ir.Value) -> bool:
        ours, theirs = second.producer(), first.producer()
        if ours is None or theirs is None or not ours.inputs or not _same_operation(ours, theirs):
            return False
        if attributes_key(ours) != attributes_key(theirs) or len(ours.inputs) != len(theirs.inputs):
            return False
        return all(self._are_the_same(a, b) for a, b in zip(ours.inputs, theirs.inputs, strict=True))

    def _are_the_same(self, second: ir.Value | None, first: ir.Value | None) -> bool:
        if second is None or first is None:
            return second is first
        if second in self.found:
            known = self.found[second]
            return known is first or (_is_constant(first) and _is_constant(known) and self.agree(second, first))
        return _is_constant(second) and _is_constant(first) and self.agree(second, first)

    def _are_read_in_order(self, value: ir.Value, fitting: Sequence[ir.Value]) -> bool:
        """Whether as many equal tensors of the second graph as of the first are made alike: their order is kept."""
        rivals = [v for v in self._rivals(value) if any(self._is_made_alike(v, c) for c in fitting)]
        return len(rivals) == len(fitting) and rivals[0] is value

    def _enter(self, second: ir.Value, first: ir.Value) -> None:
        if second not in self.found and first not in self._taken:
            self.found[second] = first
            self._taken.add(first)
            self._waiting.append((second, first))

    def _follow_back(self, second: ir.Value, first: ir.Value) -> None:
        """The same tensor made by the same operation: what that makes and reads besides is the same too."""
        ours, theirs = second.producer(), first.producer()
        if ours is None or theirs is None or not _same_operation(ours, theirs):
            return
        for own, other in zip(ours.outputs, theirs.outputs, strict=False):
            if self._may_be(own, other):
                self._enter(own, other)
        for read, before in zip(ours.inputs, theirs.inputs, strict=False):
            if read is None or before is None or not self._may_be(read, before):
                continue
            # What only passed the tensor on may be gone: then it is what the same operation as now made before.
            if _operation(read) == _operation(before) or not self._is_made_elsewhere(read):
                self._enter(read, before)
        bodies = dict(subgraphs_of(theirs))
        for name, body in subgraphs_of(ours):
            if name in bodies:
                for own, other in zip(body.inputs, bodies[name].inputs, strict=False):
                    self._enter(own, other)
                for own, other in zip(body.outputs, bodies[name].outputs, strict=False):
                    self._enter(own, other)

    def _is_made_elsewhere(self, second: ir.Value) -> bool:
        made_by = _operation(second)
        return made_by is not None and any(
            _operation(candidate) == made_by for candidate in self._candidates(second) if candidate not in self._taken
        )

    def _may_be(self, second: ir.Value, first: ir.Value) -> bool:
        if not self.agree(second, first) or self._come_of_others(second, first):
            return False
        # In bodies, which nobody sees run, the operations have to speak for the values.
        return second in self._second_values or _operation(second) == _operation(first)

    def _come_of_others(self, second: ir.Value, first: ir.Value) -> bool:
        """Whether the same operation made both, of numbers that are not the same: equal results are chance then."""
        ours, theirs = second.producer(), first.producer()
        if (
            ours is None
            or theirs is None
            or not _same_operation(ours, theirs)
            or len(ours.inputs) != len(theirs.inputs)
        ):
            return False
        read = zip(ours.inputs, theirs.inputs, strict=True)
        return any(a is not None and b is not None and not self.agree(a, b) for a, b in read)

    def _follow_on(self, second: ir.Value, first: ir.Value) -> None:
        """What the only operation of its kind makes of the same tensor, at the same place, with the same result."""
        uses, before = second.uses(), first.uses()
        if len(uses) > _MOST_READERS or len(before) > _MOST_READERS:
            return
        for use in uses:
            if all(value in self.found for value in use.node.outputs):
                continue
            theirs = [b.node for b in before if b.idx == use.idx and self._makes_alike(use.node, b.node)]
            ours = [u.node for u in uses if theirs and u.idx == use.idx and self._makes_alike(u.node, theirs[0])]
            if len(theirs) == 1 == len(ours):
                for own, other in zip(use.node.outputs, theirs[0].outputs, strict=False):
                    if self._may_be(own, other):
                        self._enter(own, other)

    def _makes_alike(self, ours: ir.Node, theirs: ir.Node) -> bool:
        return _same_operation(ours, theirs) and all(
            self.agree(own, other) for own, other in zip(ours.outputs, theirs.outputs, strict=True)
        )


def _same_operation(one: ir.Node, other: ir.Node) -> bool:
    return one.op_identifier() == other.op_identifier() and len(one.outputs) == len(other.outputs)


def _operation(value: ir.Value) -> object:
    producer = value.producer()
    return None if producer is None else (producer.op_identifier(), value.index())


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.const_value is not None if producer is None else not producer.inputs


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from node.outputs
