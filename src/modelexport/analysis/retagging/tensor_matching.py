"""Match the tensors of a rewritten graph with those of the original graph by value and data flow, without names.

A tensor with distinctive values is matched by them. From there, data flow leads to further matches: inputs and outputs
of the same operators at the same positions, if their values agree. Tensors that remain ambiguous are left unmatched.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from modelexport.graph import Fingerprint, ValueIndex, attributes_key, subgraphs_of

Fingerprints = Mapping[ir.Value, Fingerprint]

# A constant with hundreds of consumers identifies none of them.
_MAX_CONSUMERS = 256


def match_tensors(
    original: ir.Model,
    original_values: Fingerprints,
    rewritten: ir.Model,
    rewritten_values: Fingerprints,
    inputs: Iterable[tuple[ir.Value, ir.Value]],
) -> dict[ir.Value, ir.Value]:
    """The original tensors by rewritten tensor; each original tensor is matched at most once.

    Args:
        original_values: The fingerprints of its tensors.
        rewritten_values: The fingerprints of its tensors, from a run on the same inputs.
        inputs: The matched inputs: original, rewritten.
    """
    matcher = _Matcher(original.graph, original_values, rewritten.graph, rewritten_values)
    for old, new in inputs:
        matcher.pair(new, old)
    matcher.pair_by_value()
    for old, new in zip(original.graph.outputs, rewritten.graph.outputs, strict=False):
        if matcher.agree(new, old):
            matcher.pair(new, old)
    matcher.match_rest()
    return matcher.found


class _Matcher:
    def __init__(
        self, original: ir.Graph, original_values: Fingerprints, rewritten: ir.Graph, rewritten_values: Fingerprints
    ) -> None:
        self.found: dict[ir.Value, ir.Value] = {}
        self._matched_originals: set[ir.Value] = set()
        self._waiting: collections.deque[tuple[ir.Value, ir.Value]] = collections.deque()
        self._original_values = original_values
        self._rewritten_values = rewritten_values
        self._original = list(_values(original))
        self._rewritten = list(_values(rewritten))
        self._index = ValueIndex([original_values.get(value) for value in self._original])
        self._candidates_by_key: dict[object, list[ir.Value]] = {}
        self._groups: dict[tuple[int, ...], list[ir.Value]] = {}

    def pair(self, rewritten: ir.Value, original: ir.Value) -> None:
        """Match two tensors, and those that data flow leads to from them."""
        self._add(rewritten, original)
        while self._waiting:
            new, old = self._waiting.popleft()
            self._match_upstream(new, old)
            self._match_downstream(new, old)

    def agree(self, rewritten: ir.Value, original: ir.Value) -> bool:
        """Whether the known values of two tensors are equal; also if the values of both are unknown."""
        new, old = self._rewritten_values.get(rewritten), self._original_values.get(original)
        if new is not None and old is not None:
            return new.same_order(old)
        return new is old

    def pair_by_value(self) -> None:
        """Match each tensor that equals exactly one original tensor which no other tensor equals."""
        wanted = [value for value in self._rewritten if self._is_distinctive(value)]
        candidate_counts = collections.Counter(old for value in wanted for old in self._candidates(value))
        for value in wanted:
            candidates = self._candidates(value)
            if len(candidates) == 1 and candidate_counts[candidates[0]] == 1:
                self.pair(value, candidates[0])

    def match_rest(self) -> None:
        """Match the remaining tensors, the strictest condition first, until no match is found."""
        rounds = (self._by_operation_and_inputs, self._by_operation, self._by_values_and_shape)
        position = 0
        while position < len(rounds):
            before = len(self.found)
            rounds[position]()
            position = 0 if len(self.found) > before else position + 1

    def _by_operation_and_inputs(self) -> None:
        """Match tensors that the same operator produces from the same inputs."""
        for value, candidates in self._unmatched():
            matching = [c for c in candidates if self._has_same_producer(value, c)]
            if len(matching) == 1 or (matching and self._have_same_count(value, matching)):
                self.pair(value, matching[0])

    def _by_operation(self) -> None:
        """Match tensors that the same operator produces, if each graph has one such tensor."""
        for value, candidates in self._unmatched():
            if self._is_distinctive(value):
                matching = [c for c in candidates if _operation(c) == _operation(value) is not None]
                equal = [v for v in self._equal_tensors(value) if _operation(v) == _operation(value)]
                if len(matching) == 1 == len(equal):
                    self.pair(value, matching[0])

    def _by_values_and_shape(self) -> None:
        """Match the only tensor with these values and shape to the first of several: the others were no-op outputs."""
        for value, candidates in self._unmatched():
            if not self._is_distinctive(value):
                continue
            shape = self._rewritten_values[value].shape
            matching = [c for c in candidates if self._original_values[c].shape == shape]
            equal = [v for v in self._equal_tensors(value) if self._rewritten_values[v].shape == shape]
            if matching and len(equal) == 1:
                self.pair(value, matching[0])

    def _unmatched(self) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
        for value in self._rewritten:
            if value not in self.found:
                yield value, [c for c in self._candidates(value) if c not in self._matched_originals]

    def _equal_tensors(self, value: ir.Value) -> list[ir.Value]:
        """The unmatched tensors of the rewritten graph with the same candidates, `value` included."""
        if not self._groups:
            for other in self._rewritten:
                self._groups.setdefault(self._group(other), []).append(other)
        return [other for other in self._groups[self._group(value)] if other not in self.found]

    def _group(self, value: ir.Value) -> tuple[int, ...]:
        return tuple(id(candidate) for candidate in self._candidates(value))

    def _is_distinctive(self, value: ir.Value) -> bool:
        known = self._rewritten_values.get(value)
        return known is not None and known.is_distinctive

    def _candidates(self, value: ir.Value) -> list[ir.Value]:
        """The original tensors with the same values in the same element order, in graph order."""
        wanted = self._rewritten_values.get(value)
        if wanted is None:
            return []
        key = (wanted.group, wanted.features.tobytes(), wanted.tolerance)
        if key not in self._candidates_by_key:
            found = [self._original[number] for number in self._index.find(wanted)]
            self._candidates_by_key[key] = [v for v in found if wanted.same_order(self._original_values[v])]
        return self._candidates_by_key[key]

    def _has_same_producer(self, rewritten: ir.Value, original: ir.Value) -> bool:
        new, old = rewritten.producer(), original.producer()
        if new is None or old is None or not new.inputs or not _same_operation(new, old):
            return False
        if attributes_key(new) != attributes_key(old) or len(new.inputs) != len(old.inputs):
            return False
        return all(self._is_same_input(a, b) for a, b in zip(new.inputs, old.inputs, strict=True))

    def _is_same_input(self, rewritten: ir.Value | None, original: ir.Value | None) -> bool:
        if rewritten is None or original is None:
            return rewritten is original
        if rewritten in self.found:
            known = self.found[rewritten]
            if known is original:
                return True
            return _is_constant(original) and _is_constant(known) and self.agree(rewritten, original)
        return _is_constant(rewritten) and _is_constant(original) and self.agree(rewritten, original)

    def _have_same_count(self, value: ir.Value, matching: Sequence[ir.Value]) -> bool:
        """Whether both graphs have equally many such tensors, and `value` is the first: rewrites keep their order."""
        equal = [v for v in self._equal_tensors(value) if any(self._has_same_producer(v, c) for c in matching)]
        return len(equal) == len(matching) and equal[0] is value

    def _add(self, rewritten: ir.Value, original: ir.Value) -> None:
        if rewritten not in self.found and original not in self._matched_originals:
            self.found[rewritten] = original
            self._matched_originals.add(original)
            self._waiting.append((rewritten, original))

    def _match_upstream(self, rewritten: ir.Value, original: ir.Value) -> None:
        """Match the other outputs and the inputs of the producers of two matched tensors."""
        new, old = rewritten.producer(), original.producer()
        if new is None or old is None or not _same_operation(new, old):
            return
        for own, other in zip(new.outputs, old.outputs, strict=False):
            if self._can_match(own, other):
                self._add(own, other)
        for consumed, before in zip(new.inputs, old.inputs, strict=False):
            if consumed is None or before is None or not self._can_match(consumed, before):
                continue
            # A no-op node may have been removed: prefer an original tensor that the same operator produced.
            if _operation(consumed) == _operation(before) or not self._has_other_candidate(consumed):
                self._add(consumed, before)
        original_subgraphs = dict(subgraphs_of(old))
        for name, subgraph in subgraphs_of(new):
            if name in original_subgraphs:
                for own, other in zip(subgraph.inputs, original_subgraphs[name].inputs, strict=False):
                    self._add(own, other)
                for own, other in zip(subgraph.outputs, original_subgraphs[name].outputs, strict=False):
                    self._add(own, other)

    def _has_other_candidate(self, rewritten: ir.Value) -> bool:
        operation = _operation(rewritten)
        candidates = (c for c in self._candidates(rewritten) if c not in self._matched_originals)
        return operation is not None and any(_operation(candidate) == operation for candidate in candidates)

    def _can_match(self, rewritten: ir.Value, original: ir.Value) -> bool:
        if not self.agree(rewritten, original) or self._have_different_inputs(rewritten, original):
            return False
        # The values of subgraphs are unknown: there the operators must be the same.
        return rewritten in self._rewritten_values or _operation(rewritten) == _operation(original)

    def _have_different_inputs(self, rewritten: ir.Value, original: ir.Value) -> bool:
        """Whether the same operator produced both from different inputs: then equal values are a coincidence."""
        new, old = rewritten.producer(), original.producer()
        if new is None or old is None or not _same_operation(new, old) or len(new.inputs) != len(old.inputs):
            return False
        consumed = zip(new.inputs, old.inputs, strict=True)
        return any(a is not None and b is not None and not self.agree(a, b) for a, b in consumed)

    def _match_downstream(self, rewritten: ir.Value, original: ir.Value) -> None:
        """Match the outputs of consumers of the same operator at the same input, if the match is unique."""
        uses, before = rewritten.uses(), original.uses()
        if len(uses) > _MAX_CONSUMERS or len(before) > _MAX_CONSUMERS:
            return
        for use in uses:
            if all(value in self.found for value in use.node.outputs):
                continue
            old = [b.node for b in before if b.idx == use.idx and self._have_same_outputs(use.node, b.node)]
            new = [u.node for u in uses if old and u.idx == use.idx and self._have_same_outputs(u.node, old[0])]
            if len(old) == 1 == len(new):
                for own, other in zip(use.node.outputs, old[0].outputs, strict=False):
                    if self._can_match(own, other):
                        self._add(own, other)

    def _have_same_outputs(self, new: ir.Node, old: ir.Node) -> bool:
        return _same_operation(new, old) and all(
            self.agree(own, other) for own, other in zip(new.outputs, old.outputs, strict=True)
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
