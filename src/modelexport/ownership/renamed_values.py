"""Match renamed values of a rewritten graph through what they are computed from.

An optimizer that changes the memory layout of tensors renames them and recomputes their weights: neither names nor
values are those of the original graph. What remains is data flow. A renamed value completes the work of the original
node that consumes the same values, and of those after it that the rewritten node does too. No name counts here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from modelexport.graph import same_elements, subgraphs_of

if TYPE_CHECKING:
    from modelexport.ownership.value_correspondence import ValueCorrespondence

_TEXTS = frozenset({ir.AttributeType.STRING, ir.AttributeType.STRINGS})
# How many original nodes may be rewritten into one that is not known otherwise.
_MOST_REWRITTEN = 16
# The original values that a rewritten node consumes, by number.
_Consumed = Mapping[int, ir.Value]


class RenamedValues:
    """Finds the original values that renamed values of the rewritten main graph complete.

    Args:
        values: The original graph, its values and their numbers.
        originals: The original values of matched values.

    Attributes:
        completed: The original value that each renamed value completes, for those that data flow identifies.
        passed_on: For outputs of nodes with a single input that complete none: the value behind them. Such a node may
            only change the layout, or do the work of several original nodes.
    """

    def __init__(self, values: ValueCorrespondence, originals: Mapping[ir.Value, ir.Value]) -> None:
        self._values = values
        self._originals = originals
        self.completed: dict[ir.Value, ir.Value] = {}
        self.passed_on: dict[ir.Value, ir.Value] = {}
        # The numbers of original values between those that renamed values complete.
        self._between: set[int] = set()
        # The matched values of the rewritten graph, by the number of their original.
        self._matched = {
            values.number(original): value for value, original in originals.items() if value.producer() is not None
        }
        for node in values.rewritten.graph:
            if len(node.outputs) == 1 and node.outputs[0] not in originals and not subgraphs_of(node):
                self._match(node)

    def _match(self, node: ir.Node) -> None:
        consumed = self._consumed(node)
        first = self._first(node, consumed) if consumed else None
        if first is None and consumed:
            first = self._first_after_unknown(node, consumed)
            consumed = self._consumed(node)
        if first is not None:
            self._complete(node.outputs[0], self._last(first, node, consumed))
        elif len(node.inputs) == 1 and node.inputs[0] is not None:
            self.passed_on[node.outputs[0]] = self.passed_on.get(node.inputs[0], node.inputs[0])

    def _consumed(self, node: ir.Node) -> dict[int, ir.Value]:
        """The original values that a node consumes, by number; none if one of them is unknown."""
        found: dict[int, ir.Value] = {}
        for given in node.inputs:
            if given is None or given.is_initializer():
                continue
            value = self.passed_on.get(given, given)
            original = self._originals.get(value) or self.completed.get(value)
            if original is None:
                return {}
            if self._values.is_dynamic(original):
                found[self._values.number(original)] = original
        return found

    def _first(self, node: ir.Node, consumed: _Consumed) -> ir.Node | None:
        """The original node whose work a node does first; None if it is not unique.

        It consumes nothing else than the node, and has its operator, or its weights, or at least weights too: a change
        of layout has none. Of several, those count that also have the attributes of the node, then its weights.
        """
        consumers = {
            consumer: None
            for original in consumed.values()
            for consumer, _ in self._values.consumers(original)
            if self._may_be_done_by(node, consumer, consumed)
        }
        found = [consumer for consumer in consumers if consumer.op_type == node.op_type]
        if not found and _weights(node):
            with_weights = [consumer for consumer in consumers if _weights(consumer)]
            found = [consumer for consumer in with_weights if _share_weights(consumer, node)] or with_weights
        narrower: tuple[Callable[[ir.Node, ir.Node], bool], ...] = (_share_attributes, _share_weights)
        for condition in narrower:
            if len(found) > 1:
                found = [other for other in found if condition(other, node)] or found
        return found[0] if len(found) == 1 else None

    def _first_after_unknown(self, node: ir.Node, consumed: _Consumed) -> ir.Node | None:
        """The first original node, where nodes without weights before it were rewritten into one with a single input.

        The output of that one then completes what the original node consumes.
        """
        unknown = [value for value in node.inputs if value in self.passed_on]
        if len(unknown) != 1 or unknown[0] is None:
            return None
        known = dict(consumed)
        waiting = list(consumed.values())
        while waiting and len(known) < len(consumed) + _MOST_REWRITTEN:
            for consumer, _ in self._values.consumers(waiting.pop(0)):
                if not _weights(consumer) and self._may_be_done_by(node, consumer, known):
                    known[self._values.number(consumer.outputs[0])] = consumer.outputs[0]
                    waiting.append(consumer.outputs[0])
        first = self._first(node, known)
        needed = {self._values.number(value) for value in first.inputs if value is not None} if first else set()
        (*new,) = needed & (known.keys() - consumed.keys())
        if len(new) != 1:
            return None
        del self.passed_on[unknown[0]]
        self._complete(unknown[0], known[new[0]])
        return first

    def _complete(self, value: ir.Value, original: ir.Value) -> None:
        self.completed[value] = original
        self._matched.setdefault(self._values.number(original), value)

    def _may_be_done_by(self, node: ir.Node, original: ir.Node, consumed: _Consumed) -> bool:
        """Whether a node consumes all that an original node needs, and its result is not computed by another one."""
        if original.graph is not self._values.original.graph or len(original.outputs) != 1 or subgraphs_of(original):
            return False
        needed = (value for value in original.inputs if value is not None and self._values.is_dynamic(value))
        if any(self._values.number(value) not in consumed for value in needed):
            return False
        number = self._values.number(original.outputs[0])
        matched = self._matched.get(number)
        if number in self._between:
            return False
        # A node after it that changes the layout back gives the result its own name again.
        return matched is None or _inputs_of_producer(matched) == node.outputs

    def _last(self, first: ir.Node, node: ir.Node, consumed: _Consumed) -> ir.Value:
        """The value that a node really computes: it may do the work of the nodes after the first, too."""
        value = first.outputs[0]
        while not value.is_graph_output() and self._values.number(value) not in self._matched:
            consumers = {consumer for consumer, _ in self._values.consumers(value)}
            if len(consumers) != 1:
                break
            (consumer,) = consumers
            if not self._may_be_done_by(node, consumer, {**consumed, self._values.number(value): value}):
                break
            if not self._is_done_by(node, consumer, value):
                break
            self._between.add(self._values.number(value))
            value = consumer.outputs[0]
        return value

    def _is_done_by(self, node: ir.Node, original: ir.Node, value: ir.Value) -> bool:
        """Whether a node does the work of the original node that consumes its result, and not the node after it."""
        following = list(self._following(node.outputs[0]))
        if any(other.op_type == original.op_type for other in following):
            return False
        number = self._values.number(value)
        others = [other for other in original.inputs if other is not None and self._values.number(other) != number]
        if any(self._values.is_dynamic(other) for other in others) or original.op_type in _texts(node):
            return True
        # The weights of the original node became part of those of this one, if no node after it has any.
        weights = bool(others) and all(map(_is_weight, others))
        return weights and not any(_weights(other) for other in following)

    def _following(self, value: ir.Value) -> Iterator[ir.Node]:
        """The consumers of a value, and those of nodes with a single input, which may only change the layout."""
        for use in value.uses():
            yield use.node
            if len(use.node.inputs) == 1:
                yield from (after.node for output in use.node.outputs for after in output.uses())


def _inputs_of_producer(value: ir.Value) -> tuple[ir.Value | None, ...]:
    producer = value.producer()
    return () if producer is None else tuple(producer.inputs)


def _texts(node: ir.Node) -> set[str]:
    """The strings in a node's attributes: a fused node names the operator of its activation there."""
    texts = (a.value for a in node.attributes.values() if a.type in _TEXTS and not a.is_ref())
    return {text for value in texts for text in ([value] if isinstance(value, str) else value)}


def _share_attributes(original: ir.Node, node: ir.Node) -> bool:
    """Whether a node has the attributes of an original one; it may have more."""
    return all(
        name in node.attributes and node.attributes[name].value == attribute.value
        for name, attribute in original.attributes.items()
    )


def _share_weights(original: ir.Node, node: ir.Node) -> bool:
    """Whether both nodes have a weight with the same elements, in any order, without zeros: layouts pad with them."""
    return any(same_elements(one, other) for one in _weights(original) for other in _weights(node))


def _weights(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and _is_weight(value)]


def _is_weight(value: ir.Value) -> bool:
    constant = ir.convenience.get_const_tensor(value)
    return constant is not None and constant.dtype.is_floating_point()
