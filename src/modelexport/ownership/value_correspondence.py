"""Which tensor of a rewritten graph is which tensor of the original graph.

Optimizers fold, fuse and merge nodes but keep the names of most tensors. Tensors are matched by name first, then by
data flow: renamed tensors, tensors merged with equal ones, and tensors removed together with no-op nodes. No operator
is known by name: only producers, consumers, and equality by construction count.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Container, Iterator, Mapping

import onnx_ir as ir

from modelexport.graph import ValueNumbers, attributes_key, named_values, same_constant, subgraphs_of
from modelexport.ownership.no_ops import RemovedNoOps, passed_on_values, returned_input
from modelexport.ownership.renamed_values import RenamedValues

# The maximum number of nodes that an optimizer fuses into the one before them.
_MAX_FUSED = 8


class ValueCorrespondence:
    """The values of a rewritten graph, matched to those of the original graph. Neither graph is changed.

    Args:
        original: The original graph. Its nodes that return their input (dropout in evaluation mode) do no work: the
            values on both sides of them count as one.
        rewritten: The rewritten graph.
        names: For values of the rewritten graph the names that the same values have in the original graph; None where
            the names of both graphs say so themselves.
    """

    def __init__(self, original: ir.Model, rewritten: ir.Model, names: Mapping[ir.Value, str] | None = None) -> None:
        self.original = original
        self.rewritten = rewritten
        self.original_values = named_values(original.graph)
        self._names = names
        self._passed_on = passed_on_values(original)
        self._numbers = ValueNumbers(original, self._passed_on)
        self._originals: dict[ir.Value, ir.Value] = {}
        # A second original of a value: the output of a removed no-op node, whose name it got.
        self._also: dict[ir.Value, ir.Value] = {}
        # The nodes whose outputs turned out to equal the value of this number.
        self._merged: dict[int, dict[ir.Node, None]] = {}
        # Values in another memory layout: they complete the work of an original value, and are not equal to it; and
        # values behind which there is another one, perhaps in another layout.
        self._completed: Mapping[ir.Value, ir.Value] = {}
        self._behind: Mapping[ir.Value, ir.Value] = {}
        graphs = list(self._match_graphs())
        for graph in graphs:
            self._match_by_consumers(graph)
        renamed = RenamedValues(self, self._originals)
        self._completed, self._behind = renamed.completed, renamed.passed_on
        kept = {*self._originals.values(), *self._also.values(), *self._completed.values()}
        self._kept = kept | {self._passed_on[value] for value in kept if value in self._passed_on}
        self._kept_numbers = {self._numbers.of(value) for value in self._kept}
        for graph in graphs:
            self._match_merged(graph)
        self.graphs = tuple(graphs)
        self._removed: dict[str, str | None] = {}

    @functools.cached_property
    def rewritten_values(self) -> dict[str, ir.Value]:
        """The values of the rewritten main graph by name; `original_values` are those of the original one."""
        return named_values(self.rewritten.graph)

    @functools.cached_property
    def _no_ops(self) -> RemovedNoOps:
        return RemovedNoOps(self.original, self.original_values, self.rewritten_values, self.surviving)

    # --- the answers -------------------------------------------------------------------------------------------

    @functools.cached_property
    def surviving(self) -> Mapping[str, str]:
        """For tensors of the original main graph the equal tensors of the rewritten one, no-ops removed aside."""
        return self._surviving_tensors()

    def tensor(self, name: str) -> str | None:
        """The tensor of the rewritten main graph that equals this one of the original, or None."""
        found = self.surviving.get(name)
        if found is None:
            if name not in self._removed:
                self._removed[name] = self._no_ops.find(name)
            found = self._removed[name]
        return found

    def original_of(self, value: ir.Value) -> ir.Value | None:
        """The value of the original graph that this one of the rewritten graph is, perhaps in another layout."""
        return self._originals.get(value) or self._completed.get(value)

    def original_name(self, value: ir.Value) -> str | None:
        """The name in the original graph that a value of the rewritten graph is matched by."""
        return value.name if self._names is None else self._names.get(value)

    def numbers_of(self, value: ir.Value) -> Iterator[int]:
        """The numbers of all values of the original graph that this one of the rewritten graph is."""
        value = self._behind.get(value, value)
        for values in (self._originals, self._also, self._completed):
            if value in values:
                yield self._numbers.of(values[value])

    def number(self, original: ir.Value) -> int:
        """The number of a value of the original graph: the same for all values that are equal by construction."""
        return self._numbers.of(original)

    def is_dynamic(self, original: ir.Value) -> bool:
        """Whether a value of the original graph depends on an input of the model."""
        return self._numbers.is_dynamic(original)

    def is_kept(self, number: int) -> bool:
        """Whether the rewritten graph has a value of this number."""
        return number in self._kept_numbers

    def producer(self, original: ir.Value) -> ir.Node | None:
        """The node of the original graph that computes a value, past nodes that only pass it on."""
        return self._passed_on.get(original, original).producer()

    def producer_of(self, value: ir.Value) -> ir.Node | None:
        """The node of the original graph that computes what this value of the rewritten graph is."""
        original = self.original_of(value)
        return self.producer(original) if original is not None else None

    def consumers(self, original: ir.Value) -> Iterator[tuple[ir.Node, int]]:
        """The nodes of the original graph that consume a value, each with the index of the input.

        A node that only passes the value on stands for its own consumers.
        """
        waiting = [original]
        while waiting:
            for use in waiting.pop().uses():
                passed = [output for output in use.node.outputs if output in self._passed_on]
                waiting.extend(passed)
                if not passed:
                    yield use.node, use.idx

    def is_passed_on(self, original: ir.Value) -> bool:
        """Whether a node of the original graph returns this value unchanged from its input."""
        return original in self._passed_on

    def is_same(self, one: ir.Value | None, other: ir.Value) -> bool:
        """Whether two values of the original graph are one, but for nodes that pass it on."""
        return one is not None and self._passed_on.get(one, one) is self._passed_on.get(other, other)

    def counterpart(self, node: ir.Node) -> ir.Node | None:
        """The node of the original graph that computes the same outputs by the same operator."""
        for value in node.outputs:
            producer = self.producer_of(value)
            if producer is not None and producer.op_identifier() == node.op_identifier():
                return producer
        return None

    def removed_equals(self, original: ir.Value) -> Iterator[ir.Node]:
        """The nodes of the original graph whose output equals this value, and which the rewritten graph has not."""
        for node in (*self._numbers.producers(original), *self._merged.get(self._numbers.of(original), ())):
            if self._kept.isdisjoint(node.outputs):
                yield node

    # --- matching ----------------------------------------------------------------------------------------------

    def _match_graphs(self) -> Iterator[ir.Graph]:
        """Match the main graphs, and the subgraphs of matched nodes, by name and position."""
        no_names: collections.ChainMap[str, ir.Value] = collections.ChainMap()
        waiting = [(self.rewritten.graph, self.original.graph, no_names)]
        while waiting:
            graph, original, around = waiting.pop()
            # Names of the graphs around a subgraph are known in it too.
            own = self.original_values if original is self.original.graph else named_values(original)
            names = collections.ChainMap(own, *around.maps)
            yield graph
            self._match_by_name(graph, original, names)
            self._match_renamed(graph)
            for node in graph:
                for name, subgraph in subgraphs_of(node):
                    match = self._matching_subgraph(node, name)
                    if match is not None:
                        waiting.append((subgraph, match, names))

    def _match_by_name(self, graph: ir.Graph, original: ir.Graph, names: Mapping[str, ir.Value]) -> None:
        for own, other in zip(graph.inputs, original.inputs, strict=False):
            self._originals[own] = other
        computed = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *computed):
            name = self.original_name(value)
            known = names.get(name) if name else None
            if known is not None:
                self._originals[value] = known
        # Outputs may have been renamed; their order is kept.
        for own, other in zip(graph.outputs, original.outputs, strict=False):
            self._originals.setdefault(own, other)

    def _match_renamed(self, graph: ir.Graph) -> None:
        """Find the nodes whose output got the name of a removed no-op's output."""
        known = {self._numbers.of(original) for original in self._originals.values()}
        for node in graph:
            if len(node.outputs) != 1 or node.outputs[0] not in self._originals or self.counterpart(node) is not None:
                continue
            value = node.outputs[0]
            inputs = [self._originals.get(given) if given is not None else None for given in node.inputs]
            alike = self._numbers.alike(node, inputs)
            if not alike or self._numbers.of(alike[0].outputs[0]) in known:
                continue
            if all(map(_has_same_content, node.inputs, inputs)):
                self._also[value] = self._originals[value]
                self._originals[value] = alike[0].outputs[0]

    def _match_by_consumers(self, graph: ir.Graph) -> None:
        """Match a renamed value through its consumers: it replaces the value they consumed in the original graph.

        Only consumers with the same operator as in the original graph count, and they have to agree.
        """
        known = {self._numbers.of(original) for original in self._originals.values()}
        for node in reversed(list(graph)):
            for value in node.outputs:
                if value in self._originals:
                    continue
                candidates = {}
                for use in value.uses():
                    consumer = self.counterpart(use.node) or self._counterpart_before_fusion(use.node, known)
                    if consumer is None or use.idx >= len(consumer.inputs):
                        continue
                    original = self._before_fusion(consumer.inputs[use.idx], value)
                    if original is not None and self._numbers.is_dynamic(original):
                        candidates[self._numbers.of(original)] = original
                if len(candidates) == 1:
                    self._originals[value] = next(iter(candidates.values()))
            self._match_before_no_ops(node, known)

    def _match_before_no_ops(self, node: ir.Node, known: Container[int]) -> None:
        """Match the value that a node computes, where its output got the name or the consumers of a removed no-op's."""
        for value in node.outputs:
            original = self._originals.get(value)
            while original is not None and (producer := self.producer(original)) is not None:
                if producer.op_identifier() == node.op_identifier():
                    break
                source = returned_input(producer, self.original.opset_imports)
                if source is None or self._numbers.of(source) in known:
                    break
                self._also.setdefault(value, original)
                self._originals[value] = original = source

    def _counterpart_before_fusion(self, node: ir.Node, known: Container[int]) -> ir.Node | None:
        """The node of the original graph with this operation, where those that consumed its output were fused into it.

        Each of them has a single dynamic input, and it is not among the known values of the rewritten graph.
        """
        producer = next(filter(None, map(self.producer_of, node.outputs)), None)
        for _ in range(_MAX_FUSED):
            consumed = self._single_input(producer)
            if consumed is None or self._numbers.of(consumed) in known:
                return None
            producer = self.producer(consumed)
            if producer is not None and producer.op_identifier() == node.op_identifier():
                return producer if attributes_key(producer) == attributes_key(node) else None
        return None

    def _before_fusion(self, original: ir.Value | None, value: ir.Value) -> ir.Value | None:
        """The value of the original graph that a node consumes in the rewritten one as `value`.

        It is the node's input, or, if that has another number of elements, the input of a node before it that was fused
        into it, as padding is.
        """
        for _ in range(_MAX_FUSED):
            if original is None or not _differ_in_size(original, value):
                return original
            original = self._single_input(self.producer(original))
        return None

    def _single_input(self, node: ir.Node | None) -> ir.Value | None:
        """The input of a node of the original graph that depends on an input of the model, if it is the only one."""
        inputs = [value for value in (node.inputs if node else ()) if value is not None and self.is_dynamic(value)]
        return inputs[0] if len(inputs) == 1 else None

    def _match_merged(self, graph: ir.Graph) -> None:
        """Find values that replace equal ones, where only the rewriting showed that they are equal.

        A size that is computed and one that is a constant are not equal by construction before constants are folded.
        """
        for node in graph:
            counterpart = self.counterpart(node)
            if counterpart is None or len(counterpart.inputs) != len(node.inputs):
                continue
            for own, gone in zip(node.inputs, counterpart.inputs, strict=True):
                kept = self._originals.get(own) if own is not None else None
                if kept is not None and gone is not None:
                    self._merge(kept, gone)

    def _merge(self, kept: ir.Value, gone: ir.Value) -> None:
        """Record two values as merged, with their producers, as far back as those are the same operations."""
        waiting = [(kept, gone)]
        while waiting:
            kept, gone = waiting.pop()
            number, node, other = self._numbers.of(kept), self.producer(kept), self.producer(gone)
            if node is None or other is None or other in self._merged.get(number, ()):
                continue
            if self.is_kept(self._numbers.of(gone)) or not same_operation(node, other):
                continue
            if any(value is not None and self._numbers.of(value) == number for value in other.inputs):
                # A no-op on the value that was kept.
                continue
            self._merged.setdefault(number, {})[other] = None
            pairs = zip(node.inputs, other.inputs, strict=True)
            waiting.extend((one, two) for one, two in pairs if one is not None and two is not None)

    def _matching_subgraph(self, node: ir.Node, name: str) -> ir.Graph | None:
        for value in node.outputs:
            producer = self.producer_of(value)
            for other, subgraph in subgraphs_of(producer) if producer is not None else ():
                if other == name:
                    return subgraph
        return None

    def _surviving_tensors(self) -> dict[str, str]:
        # An original graph may have been written without its weights; they keep their names.
        weights = () if self._names is not None else self.rewritten.graph.initializers
        found = {name: name for name in weights}
        by_number: dict[int, str] = {}
        itself: dict[ir.Value, str] = {}
        for value, original in (*self._originals.items(), *self._also.items()):
            if value.name and value.graph is self.rewritten.graph and self._may_have_same_rank(value, original):
                itself.setdefault(original, value.name)
                by_number.setdefault(self._numbers.of(original), value.name)
        for name, original in self.original_values.items():
            # Equal values that were not merged are still two.
            tensor = itself.get(original) or by_number.get(self._numbers.of(original))
            if tensor is not None:
                found[name] = tensor
        return found

    def _may_have_same_rank(self, value: ir.Value, original: ir.Value) -> bool:
        """Whether two values may be equal as far as their ranks are known: a reshape may have moved past the value."""
        if self._names is not None and value in self._names:
            return True  # matched by value: by the same operation, or with the same shape
        if value.shape is not None and original.shape is not None:
            return len(value.shape) == len(original.shape)
        node, before = value.producer(), self.producer(original)
        # A file may have lost its shapes. Then only the same operator returns the same rank.
        return (
            original.shape is None or node is None or before is None or node.op_identifier() == before.op_identifier()
        )


def same_operation(node: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes do the same operation, whatever their inputs."""
    if node.op_identifier() != other.op_identifier() or len(node.inputs) != len(other.inputs):
        return False
    return attributes_key(node) == attributes_key(other)


def _has_same_content(value: ir.Value | None, original: ir.Value | None) -> bool:
    """Whether a value equals the original one: weights that were recomputed may have kept their name."""
    if value is None or original is None:
        return value is original
    if value.const_value is None and original.const_value is None:
        return True
    return same_constant(value, original)


def _differ_in_size(value: ir.Value, other: ir.Value) -> bool:
    """Whether two values have different numbers of elements, as far as is known.

    Exporters rename symbolic dimensions, so those are only counted.
    """
    if value.shape is None or other.shape is None:
        return False
    static, other_static = ([dim for dim in shape if isinstance(dim, int)] for shape in (value.shape, other.shape))
    same_symbolic = len(value.shape) - len(static) == len(other.shape) - len(other_static)
    return same_symbolic and math.prod(static) != math.prod(other_static)
