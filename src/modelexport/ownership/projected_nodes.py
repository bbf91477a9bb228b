"""Owners of the nodes of a rewritten graph, from those of the original nodes between the same tensors.

A node of the rewritten graph computes its outputs from its inputs. The nodes of the original graph between the same
tensors are the region it replaces, and the calls in that region are its owner and contributors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from modelexport.graph import consumed_values
from modelexport.hierarchy import Attribution, CallId, CallTree, Kind, confidence
from modelexport.ownership.bounded_walk import VisitBudget, downstream, region
from modelexport.ownership.value_correspondence import ValueCorrespondence, same_operation

# The maximum number of nodes from an unmatched node to matched tensors: beyond it, the producers and consumers of the
# node are better evidence.
_MAX_GROUP = 64


class NodeProjector:
    """Projects the owners of an original graph onto the nodes of the graph it was rewritten into.

    `recorded` are attributions that were recorded for nodes of the rewritten graph themselves; they are used for nodes
    that match no tensor of the original graph.
    """

    def __init__(
        self,
        values: ValueCorrespondence,
        owners: Mapping[ir.Node, Attribution],
        calls: CallTree,
        recorded: Mapping[ir.Node, Attribution],
    ) -> None:
        self._values = values
        self._owners = owners
        self._calls = calls
        self._recorded = recorded
        self._by_output = {value.name: owners[node] for node in owners for value in node.outputs if value.name}
        self._removed_callers: dict[int, frozenset[CallId]] = {}
        self._budget = VisitBudget.for_graph(len(owners))

    def attributions(self) -> dict[ir.Node, Attribution]:
        """The attribution of each node of the rewritten graph for which there is evidence."""
        found: dict[ir.Node, Attribution] = {}
        for graph in self._values.graphs:
            unmatched: list[ir.Node] = []
            for node in graph:
                attribution = self._project_node(node)
                if attribution is not None:
                    found[node] = attribution
                else:
                    unmatched.append(node)
            for node in reversed(unmatched):
                attribution = self._recorded.get(node) or self._project_unmatched(node)
                if attribution is not None:
                    found[node] = attribution
        return found

    def folded_constants(self) -> dict[str, Attribution]:
        """The initializers of the rewritten main graph that nodes of the original graph computed, with their owners."""
        found: dict[str, Attribution] = {}
        for name, value in self._values.rewritten.graph.initializers.items():
            original = self._values.original_of(value)
            producer = self._values.producer(original) if original is not None else None
            if original is not None and producer is not None and producer in self._owners:
                found[name] = confidence.folded(self._owners[producer], self._callers_of_removed_equals(original))
        return found

    def _project_node(self, node: ir.Node) -> Attribution | None:
        """The owner of a node with an output that the original graph has."""
        for value in node.outputs:
            original = self._values.original_of(value)
            if original is None:
                continue
            passing = original.producer() if self._values.is_passed_on(original) else None
            if passing is not None and passing.op_identifier() == node.op_identifier():
                return self._owners.get(passing)
            producer = self._values.producer(original)
            if producer is None or producer not in self._owners:
                continue
            if not node.inputs and producer.inputs:
                return confidence.folded(self._owners[producer])
            replaced = self._region([producer], [node], node.op_identifier())
            if len(replaced) > 1 and self._is_kept(producer, node):
                replaced = [other for other in replaced if other is producer or self._is_equal(other, producer)]
            return self._combine(self._owners[producer], replaced, original)
        names = (self._values.original_name(value) for value in node.outputs)
        return next((self._by_output[name] for name in names if name and name in self._by_output), None)

    def _is_kept(self, original: ir.Node, node: ir.Node) -> bool:
        """Whether `node` is a node of the original graph: the same operation, but for removed no-ops, on its inputs."""
        if not same_operation(node, original):
            return False
        return all(
            own is before if own is None or before is None else self._is_same_input(own, before)
            for own, before in zip(node.inputs, original.inputs, strict=True)
        )

    def _is_same_input(self, own: ir.Value, original: ir.Value) -> bool:
        if self._values.number(original) in self._values.numbers_of(own):
            return True
        # No-ops between the two may have been removed.
        return self._values.is_dynamic(original) and self._values.tensor(original.name or "") == own.name

    def _is_equal(self, one: ir.Node, other: ir.Node) -> bool:
        """Whether two nodes of the original graph do the same on any data: either may be the one that was kept."""
        return same_operation(one, other) and all(
            a is b
            if a is None or b is None
            else self._values.is_dynamic(a) or self._values.number(a) == self._values.number(b)
            for a, b in zip(one.inputs, other.inputs, strict=True)
        )

    def _project_unmatched(self, node: ir.Node) -> Attribution | None:
        """The owner of a node whose outputs are new, from the matched tensors downstream of it.

        The node and its consumers, until every output is matched, replace a region of the original graph. Consumers
        with a counterpart in the region account for that part; the rest is what the node does.
        """
        group = downstream(node, self._unmatched_consumers, VisitBudget(_MAX_GROUP - 1))
        outputs = (self._values.original_of(value) for member in group for value in member.outputs)
        leaving = [original for original in outputs if original is not None]
        if not leaving:
            return None
        producers = [producer for original in leaving if (producer := self._values.producer(original)) is not None]
        if not producers:
            # New nodes that compute what was an input or a weight: they belong to its consumers.
            served = {node for original in leaving for node, _ in self._values.consumers(original)}
            return self._replacing(served)
        replaced = self._region(producers, group)
        counterparts = {self._values.counterpart(member) for member in group}
        return self._replacing([other for other in replaced if other not in counterparts] or replaced)

    def _unmatched_consumers(self, node: ir.Node) -> list[ir.Node]:
        values = (value for value in node.outputs if self._values.original_of(value) is None)
        return [use.node for value in values for use in value.uses()]

    def _replacing(self, nodes: Iterable[ir.Node]) -> Attribution | None:
        owners = {self._owners[node].owner for node in nodes if node in self._owners}
        return confidence.replacing(owners, self._calls) if owners else None

    def _region(
        self, producers: list[ir.Node], group: Iterable[ir.Node], operator: ir.OperatorIdentifier | None = None
    ) -> list[ir.Node]:
        """The nodes of the original graph between what a group of the rewritten graph consumes and these producers.

        A path that ends at another tensor of the rewritten graph was removed by the rewriting (folded shapes), and
        constants are ignored. Only a node with this `operator` may replace nodes whose outputs the rewritten graph
        still has for other consumers.
        """
        values = self._values
        members = set(group)
        consumed = [value for node in members for value in consumed_values(node) if value.producer() not in members]
        stops = {number for value in consumed for number in values.numbers_of(value)}

        def producers_of(node: ir.Node, value: ir.Value) -> tuple[ir.Node, ...] | None:
            if not values.is_dynamic(value):
                return ()
            number = values.number(value)
            if number in stops:
                return None
            producer = values.producer(value)
            if producer is None or (values.is_kept(number) and node.op_identifier() != operator):
                return ()
            return (producer,)

        return region(producers, consumed_values, producers_of, self._budget)

    def _callers_of_removed_equals(self, original: ir.Value) -> frozenset[CallId]:
        """The calls that computed an equal value which the rewritten graph no longer has."""
        number = self._values.number(original)
        if number not in self._removed_callers:
            self._removed_callers[number] = frozenset(
                call
                for node in self._values.removed_equals(original)
                if node in self._owners
                for call in _working_calls(self._owners[node])
            )
        return self._removed_callers[number]

    def _combine(self, own: Attribution, replaced: list[ir.Node], original: ir.Value) -> Attribution:
        fused = {call for node in replaced if node in self._owners for call in _working_calls(self._owners[node])}
        fused -= {own.owner}
        merged = self._callers_of_removed_equals(original) - {own.owner}
        if not fused.issubset(own.contributors):
            return confidence.fused(own, fused | merged)
        if not merged.issubset(own.contributors):
            return confidence.merged(own, fused | merged)
        return own


def _working_calls(found: Attribution) -> set[CallId]:
    """The calls that computed a node; the contributors of an inferred owner are only candidates."""
    if found.kind is Kind.INFERRED:
        return {found.owner}
    return {found.owner, *found.contributors}
