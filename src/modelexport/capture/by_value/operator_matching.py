"""Matches the nodes of an ONNX graph to the operators of an eager run by value, and attributes them to its calls.

Where several calls computed equal values, the inputs and the consumers of a node decide between them. Where they do not
decide, the owner is the innermost call around all candidates. Only values, producers and consumers count: no operator
is known by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from modelexport.capture.by_value.eager_graph import EagerGraph, Operation
from modelexport.graph import Fingerprint, ValueIndex, subgraphs_of
from modelexport.hierarchy import Attribution, CallId, CallTree, Kind, confidence
from modelexport.ownership import VisitBudget, downstream


class OperatorMatching:
    """The nodes of a graph, matched to the operators of an eager run that computed the same values."""

    def __init__(
        self,
        graph: ir.Graph,
        tensors: Mapping[str, Fingerprint],
        anchors: Mapping[str, set[int]],
        eager: EagerGraph,
        calls: CallTree,
        results: Sequence[int],
        outer: OperatorMatching | None = None,
    ) -> None:
        """Match the graph to the run.

        Args:
            graph: The main graph, or a subgraph.
            tensors: The fingerprints of its tensors, by name.
            anchors: The known values of its inputs and initializers, by name.
            eager: The eager run.
            calls: The module calls of the run.
            results: The values that the model returned; for a subgraph those that its functions returned.
            outer: For a subgraph, the matching of the graph around it.
        """
        # The values of the run that each tensor may be.
        self.found: dict[ir.Value, set[int]] = {}
        self._consumed = {node: _consumed_values(node) for node in graph}
        self._nodes = _sorted_nodes(self._consumed)
        self.tensors = tensors
        self._anchors = anchors
        self.eager = eager
        self._index = ValueIndex(eager.run.fingerprints)
        self._calls = calls
        self._counterparts: dict[ir.Value, list[int]] = {}
        # The nodes whose output has the elements of inputs, with these inputs; and those that keep the layout as well.
        self._copied_inputs: dict[ir.Node, list[ir.Value]] = {}
        self._same_layout: set[ir.Node] = set()
        self._consumers: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self._consumed.items():
            for value in values:
                self._consumers.setdefault(value, []).append(node)
        for value in (*graph.inputs, *graph.initializers.values()):
            if value.name is not None and value.name in anchors:
                self.found[value] = self.eager.with_copies(anchors[value.name])
        # The nodes that depend on no input of the graph.
        self._constant: set[ir.Node] = set()
        if outer is not None:
            self._constant |= outer._constant
            outside = [value for values in self._consumed.values() for value in values if value in outer.found]
            self.found.update({value: self.eager.with_copies(outer.found[value]) for value in outside})
        for node in self._nodes:
            self._match_node(node)
            if all(v.is_initializer() or v.producer() in self._constant for v in self._consumed[node]):
                self._constant.add(node)
        self._budget = VisitBudget.for_graph(len(self._nodes))
        self._disambiguated: set[ir.Node] = set()
        returned = _returned_values(graph, results)
        for node in reversed(self._nodes):
            self._keep_consumed(node, returned)
        self._survivors = set().union(*self.found.values()) if self.found else set()
        self._match_counts = Counter(number for node in self._nodes for number in set(self.counterparts(node)))

    def counterparts(self, node: ir.Node) -> list[int]:
        """The operators that computed the node's outputs, in the order they ran."""
        return sorted({number for value in node.outputs for number in self._counterparts.get(value, ())})

    def is_produced_as(self, value: ir.Value, number: int) -> bool:
        """Whether a tensor is this value, not only an equal one: a graph input that has it, or the output of a node
        that matches an operator that computed it."""
        if value.is_graph_input():
            return number in self._anchors.get(value.name or "", ())
        return any(number in self.eager.run.operations[n].outputs for n in self._counterparts.get(value, ()))

    # --- matching ----------------------------------------------------------------------------------------------

    def _match_node(self, node: ir.Node) -> None:
        entering = self._values_of(self._consumed[node])
        for output in node.outputs:
            known = self.tensors.get(output.name or "")
            if known is None:
                continue
            candidates = self._candidates(known, entering)
            numbers = {number for value in candidates for number in self.eager.producers.get(value, ())}
            sources = [v for v in node.inputs if v is not None and self._is_copy_of(v, known)]
            if sources:
                numbers = self._match_copy(node, known, sources, candidates, numbers)
            else:
                numbers -= self.eager.copying
            chosen = self._sharing_most_inputs(node, numbers)
            if chosen:
                self._counterparts[output] = chosen
            produced = {value for number in chosen for value in self.eager.run.operations[number].outputs}
            kept = candidates & self.eager.with_copies(entering if node in self._copied_inputs else produced)
            self.found[output] = kept or candidates

    def _sharing_most_inputs(self, node: ir.Node, numbers: set[int]) -> list[int]:
        """Of several operators, those that share the most inputs with the node."""
        sources = [self.found[value] for value in self._consumed[node] if value in self.found]
        inputs = {number: self.eager.run.operations[number].inputs for number in numbers}
        shared = {n: sum(not source.isdisjoint(inputs[n]) for source in sources) for n in numbers}
        return sorted(n for n in numbers if shared[n] == max(shared.values()))

    def _candidates(self, known: Fingerprint, entering: set[int]) -> set[int]:
        """The values that equal a tensor; for one without distinctive values only those computed from its inputs."""
        if known.is_distinctive:
            return set(self._index.find(known))
        fingerprints = self.eager.run.fingerprints
        near = {
            value
            for source in entering
            for number in self.eager.consumers.get(source, ())
            for value in self.eager.run.operations[number].outputs
        }
        return {v for v in near | entering if (other := fingerprints[v]) is not None and known.same_values(other)}

    def _is_copy_of(self, value: ir.Value, known: Fingerprint) -> bool:
        own = self.tensors.get(value.name or "")
        return own is not None and own.is_copy(known)

    def _match_copy(
        self,
        node: ir.Node,
        known: Fingerprint,
        sources: Sequence[ir.Value],
        candidates: set[int],
        numbers: set[int],
    ) -> set[int]:
        """The operators that match a node whose output has the elements of an input (`sources`).

        With other operands the node computes without effect (a bias of zeros): it matches operators that consume these
        operands as well. Otherwise it matches operators that change the layout in the same way.
        """
        others = [v for v in self._consumed[node] if v not in sources]
        operands = self._values_of(others)
        computing = {n for n in numbers if not operands.isdisjoint(self.eager.run.operations[n].inputs)}
        if computing:
            return computing
        self._copied_inputs[node] = list(sources)
        fingerprints = self.eager.run.fingerprints
        before = [self.tensors[source.name or ""] for source in sources]
        if any(own.same_layout(known) for own in before):
            self._same_layout.add(node)
        alike = {
            number
            for value in candidates
            if (after := fingerprints[value]) is not None and known.same_layout(after)
            for number in self.eager.producers.get(value, ())
            if number in self.eager.copying
            and any(
                (given := fingerprints[source]) is not None and any(own.same_layout(given) for own in before)
                for source in self.eager.run.operations[number].inputs
            )
        }
        if any((own := self.tensors.get(v.name or "")) is not None and own.is_operand for v in others):
            return alike | (numbers - self.eager.copying)
        return alike

    def _keep_consumed(self, node: ir.Node, results: Mapping[ir.Value, set[int]]) -> None:
        """Of operators in several calls, keep those whose outputs the operators of the node's consumers consumed."""
        for output in node.outputs:
            numbers = self._counterparts.get(output, [])
            if len({self.eager.call(number) for number in numbers}) < 2:
                continue
            _, consumers = self._unmatched_group(node)
            consumed = set(results.get(output, ())).union(*(self.eager.run.operations[n].inputs for n in consumers))
            produced = {n: self.eager.with_copies(self.eager.run.operations[n].outputs) for n in numbers}
            kept = [number for number in numbers if not produced[number].isdisjoint(consumed)]
            if kept:
                self._disambiguated.add(node)
                self._counterparts[output] = kept
                values = set().union(*(produced[number] for number in kept))
                self.found[output] = self.found[output] & values or self.found[output]

    def _values_of(self, values: Iterable[ir.Value]) -> set[int]:
        return set().union(*(self.found.get(value, set()) for value in values))

    # --- owners ------------------------------------------------------------------------------------------------

    def attributions(self) -> dict[ir.Node, Attribution]:
        """The attribution of each node with evidence."""
        known: dict[ir.Node, Attribution] = {}
        for node in self._nodes:
            numbers = self.counterparts(node)
            if numbers:
                known[node] = self._from_matches(node, numbers)
        for node in reversed(self._nodes):
            if node not in known:
                attribution = self._from_region(node, known) or self._from_weights(node, None)
                if attribution is not None:
                    known[node] = attribution
        return known

    def nodes_with_subgraphs(self) -> Iterator[tuple[ir.Node, Operation]]:
        """The nodes with subgraphs, each with the control-flow operator that it matches."""
        for node in self._nodes:
            if any(True for _ in subgraphs_of(node)):
                for number in self.counterparts(node):
                    if self.eager.run.operations[number].functions:
                        yield node, self.eager.run.operations[number]
                        break

    def _from_matches(self, node: ir.Node, numbers: list[int]) -> Attribution:
        callers = self._callers(numbers)
        owner = callers[0]
        if node in self._same_layout:
            # A no-op belongs to its producer, to its consumers, or to a call in between that returned its input.
            nearby = [*callers, *self._callers_of_copied([node]), *self._callers(self._unmatched_group(node)[1])]
            return self._one_of(nearby, confidence.PASSED_ON)
        if len(callers) == 1 and node in self._copied_inputs:
            return confidence.laid_out_by(owner)
        if len(callers) == 1:
            return self._computed_by(owner, node, numbers)
        single_output = sum(value in self._counterparts for value in node.outputs) == 1
        alone = all(self._match_counts[number] == 1 for number in numbers)
        if single_output and alone and node in self._disambiguated:
            return confidence.merged_by_value(owner, callers[1:])
        return self._one_of(callers, confidence.EQUAL_VALUES)

    def _computed_by(self, owner: CallId, node: ir.Node, numbers: list[int]) -> Attribution:
        region = self.eager.region(numbers, self._values_of(self._consumed[node]), self._survivors)
        fused = set(self._callers(n for n in region if n not in self.eager.copying)) - {owner}
        if fused:
            return confidence.fused_by_value(owner, fused)
        if any((known := self.tensors.get(v.name or "")) is not None and known.is_distinctive for v in node.outputs):
            return confidence.computed_by_value(owner)
        return confidence.computed_from_same_inputs(owner)

    def _callers_of_copied(self, nodes: Iterable[ir.Node]) -> list[CallId]:
        """The calls that computed the values that these nodes copy."""
        numbers: list[int] = []
        seen: set[ir.Node] = set()
        waiting = [node for node in nodes if node in self._copied_inputs]
        while waiting:
            for value in self._copied_inputs[waiting.pop()]:
                producer = value.producer()
                if producer is None or producer in seen:
                    continue
                seen.add(producer)
                numbers += self.counterparts(producer)
                if producer in self._copied_inputs and not self.counterparts(producer):
                    waiting.append(producer)
        return self._callers(numbers)

    def _callers(self, numbers: Iterable[int]) -> list[CallId]:
        return list(dict.fromkeys(self.eager.call(number) for number in numbers))

    def _one_of(self, callers: Iterable[CallId], evidence: str) -> Attribution:
        return confidence.one_of_candidates(callers, evidence, self._calls)

    def _from_region(self, node: ir.Node, known: Mapping[ir.Node, Attribution]) -> Attribution | None:
        """The owner of an unmatched node: the calls of the operators between the matched tensors around it.

        The node and its consumers, up to matched outputs, replace the operators that eager PyTorch ran between the same
        tensors.
        """
        group, starts = self._unmatched_group(node)
        if not starts:
            return None
        members = set(group)
        entering = [v for n in group for v in self._consumed[n] if v.producer() not in members]
        region = self.eager.region(starts, self._values_of(entering), self._survivors)
        callers = self._callers([*starts, *(n for n in region if n not in self.eager.copying)])
        # A copy may belong to the producer of its input as well as to its consumers.
        callers += self._callers_of_copied(n for n in group if not self.counterparts(n))
        if node in self._constant:
            behind = self.eager.constants_behind(starts)
            callers += self._callers(number for number in behind if number not in self.eager.copying)
        if len(set(callers)) > 1:
            decided = _part_of_merged([known[n] for n in group if self.counterparts(n)], callers)
            decided = decided or self._from_weights(node, callers)
            if decided is not None:
                return decided
        return self._one_of(callers, confidence.NO_SUCH_VALUE)

    def _unmatched_group(self, node: ir.Node) -> tuple[list[ir.Node], list[int]]:
        """The node with its consumers, up to matched ones; and the operators that these match."""

        def consumers(member: ir.Node) -> Iterable[ir.Node]:
            if member is not node and self.counterparts(member):
                return ()
            return (consumer for value in member.outputs for consumer in self._consumers.get(value, ()))

        group = downstream(node, consumers, self._budget)
        return group, list(dict.fromkeys(number for member in group[1:] for number in self.counterparts(member)))

    def _from_weights(self, node: ir.Node, among: Sequence[CallId] | None) -> Attribution | None:
        """The owner of a node by the weights it consumes, if only one call (of `among`) consumed them."""
        weights = [v for v in self._consumed[node] if v.is_initializer() and v in self.found]
        consumers = {
            self.eager.call(number)
            for value in self._values_of(weights)
            for number in self.eager.consumers.get(value, ())
            if number not in self.eager.copying
        }
        if among is not None:
            consumers &= set(among)
        if len(consumers) != 1:
            return None
        return confidence.only_consumer_of_weight(consumers.pop())


def _part_of_merged(ends: Sequence[Attribution], callers: Iterable[CallId]) -> Attribution | None:
    """The attribution of a node that computes a part of a merged node's value: each of several calls computed it in one
    operator."""
    first = ends[0]
    if first.kind is not Kind.MERGED or {first.owner, *first.contributors} != set(callers):
        return None
    if any((end.owner, end.kind, end.contributors) != (first.owner, first.kind, first.contributors) for end in ends):
        return None
    return confidence.part_of_merged(first.owner, first.contributors)


def _returned_values(graph: ir.Graph, values: Sequence[int]) -> dict[ir.Value, set[int]]:
    """For each output of the graph the returned values: the one at its position, or all where the counts differ."""
    found: dict[ir.Value, set[int]] = {}
    for index, output in enumerate(graph.outputs):
        own = values[index : index + 1] if len(values) == len(graph.outputs) else values
        found.setdefault(output, set()).update(own)
    return found


def _sorted_nodes(consumed: Mapping[ir.Node, Sequence[ir.Value]]) -> list[ir.Node]:
    """The nodes in topological order: some tools write them unsorted."""
    found: dict[ir.Node, None] = {}
    for start in consumed:
        waiting = [start]
        opened: set[ir.Node] = set()
        while waiting:
            node = waiting[-1]
            all_producers = (value.producer() for value in consumed[node])
            producers = [p for p in all_producers if p in consumed and p not in found and p not in opened]
            if node in found or not producers or node in opened:
                found.setdefault(node)
                waiting.pop()
            else:
                waiting.extend(producer for producer in producers if producer is not None)
            opened.add(node)
    return list(found)


def _consumed_values(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node, and the values that the nodes in its subgraphs consume, inner ones included."""
    values = [value for value in node.inputs if value is not None]
    subgraphs = [subgraph for _, subgraph in subgraphs_of(node)]
    while subgraphs:
        subgraph = subgraphs.pop()
        values.extend(subgraph.outputs)
        for inner in subgraph:
            values.extend(value for value in inner.inputs if value is not None)
            subgraphs.extend(deeper for _, deeper in subgraphs_of(inner))
    return values
