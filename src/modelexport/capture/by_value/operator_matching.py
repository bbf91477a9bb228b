"""Which operators of an eager run the nodes of an ONNX graph stand for, and so whose they are.

The two graphs are matched by the values of their tensors. Where several calls made equal values, what a node reads
and who reads its results decide; where those don't, nothing is decided and the innermost call around all is named.
Only values, producers and readers count: no operator is known by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from modelexport.capture.by_value.eager_graph import EagerGraph, Operation
from modelexport.graph import Fingerprint, ValueIndex, subgraphs_of
from modelexport.hierarchy import Attribution, CallId, CallTree, Kind, confidence
from modelexport.ownership import VisitBudget, downstream


class Correspondence:
    """The operators that the nodes of a graph stand for."""

    def __init__(
        self,
        graph: ir.Graph,
        tensors: Mapping[str, Fingerprint],
        anchors: Mapping[str, set[int]],
        eager: EagerGraph,
        calls: CallTree,
        results: Sequence[int],
        around: Correspondence | None = None,
    ) -> None:
        """Match the graph to the run.

        Args:
            graph: The main graph, or a body.
            tensors: The fingerprints of its tensors, by name.
            anchors: The values of the run that its inputs and initializers are known to hold, by name.
            eager: What eager PyTorch did.
            calls: The module calls of the run.
            results: The values that the model returned, or the function that the body was made of.
            around: The graph around a body.

        Attributes:
            found: The values of the run that each tensor may hold.
        """
        self.found: dict[ir.Value, set[int]] = {}
        self._reads = {node: _read_values(node) for node in graph}
        self._nodes = _in_order(self._reads)
        self.tensors = tensors
        self.eager = eager
        self._index = ValueIndex(eager.run.fingerprints)
        self._calls = calls
        self._counterparts: dict[ir.Value, list[int]] = {}
        # The nodes that change no number, with the inputs that they pass on; and those that change no layout either.
        self._passing: dict[ir.Node, list[ir.Value]] = {}
        self._unchanging: set[ir.Node] = set()
        self._consumers: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self._reads.items():
            for value in values:
                self._consumers.setdefault(value, []).append(node)
        for value in (*graph.inputs, *graph.initializers.values()):
            if value.name is not None and value.name in anchors:
                self.found[value] = self.eager.spread(anchors[value.name])
        # The nodes that need no input of the graph.
        self._constant: set[ir.Node] = set()
        if around is not None:
            self._constant |= around._constant
            outside = [value for values in self._reads.values() for value in values if value in around.found]
            self.found.update({value: self.eager.spread(around.found[value]) for value in outside})
        for node in self._nodes:
            self._pair(node)
            if all(v.is_initializer() or v.producer() in self._constant for v in self._reads[node]):
                self._constant.add(node)
        self._budget = VisitBudget.for_graph(len(self._nodes))
        self._served: set[ir.Node] = set()
        returned = _results(graph, results)
        for node in reversed(self._nodes):
            self._keep_those_read(node, returned)
        self._survivors = set().union(*self.found.values()) if self.found else set()
        self._sharers = Counter(number for node in self._nodes for number in set(self.counterparts(node)))

    def counterparts(self, node: ir.Node) -> list[int]:
        """The operators that made what the node makes, in the order they ran."""
        return sorted({number for value in node.outputs for number in self._counterparts.get(value, ())})

    def has_made(self, value: ir.Value, number: int) -> bool:
        """Whether what a tensor's maker stands for made that very value of the eager run, and not just its like."""
        return any(number in self.eager.run.operations[n].outputs for n in self._counterparts.get(value, ()))

    # --- matching ----------------------------------------------------------------------------------------------

    def _pair(self, node: ir.Node) -> None:
        entering = self._found_by(self._reads[node])
        for output in node.outputs:
            known = self.tensors.get(output.name or "")
            if known is None:
                continue
            candidates = self._candidates(known, entering)
            numbers = {number for value in candidates for number in self.eager.makers.get(value, ())}
            sources = [v for v in node.inputs if v is not None and self._moves(v, known)]
            if sources:
                numbers = self._passing_on(node, known, sources, candidates, numbers)
            else:
                numbers -= self.eager.passing
            chosen = self._nearest(node, numbers)
            if chosen:
                self._counterparts[output] = chosen
            made = {value for number in chosen for value in self.eager.run.operations[number].outputs}
            kept = candidates & self.eager.spread(entering if node in self._passing else made)
            self.found[output] = kept or candidates

    def _nearest(self, node: ir.Node, numbers: set[int]) -> list[int]:
        """Of several operators, those that read most of what the node reads."""
        sources = [self.found[value] for value in self._reads[node] if value in self.found]
        inputs = {number: self.eager.run.operations[number].inputs for number in numbers}
        shared = {n: sum(not source.isdisjoint(inputs[n]) for source in sources) for n in numbers}
        return sorted(n for n in numbers if shared[n] == max(shared.values()))

    def _candidates(self, known: Fingerprint, entering: set[int]) -> set[int]:
        """The values that are equal to a tensor; where equality says little, only those made from what was read."""
        if known.is_distinctive:
            return set(self._index.find(known))
        fingerprints = self.eager.run.fingerprints
        near = {
            value
            for source in entering
            for number in self.eager.readers.get(source, ())
            for value in self.eager.run.operations[number].outputs
        }
        return {v for v in near | entering if (other := fingerprints[v]) is not None and known.same_values(other)}

    def _moves(self, value: ir.Value, known: Fingerprint) -> bool:
        own = self.tensors.get(value.name or "")
        return own is not None and own.is_copy(known)

    def _passing_on(
        self,
        node: ir.Node,
        known: Fingerprint,
        sources: Sequence[ir.Value],
        candidates: set[int],
        numbers: set[int],
    ) -> set[int]:
        """What a node that changes no number stands for.

        With other operands it did compute, to no effect (a bias of zeros): an operator that read those too.
        Otherwise an operator that laid the value out in the same way.
        """
        others = [v for v in self._reads[node] if v not in sources]
        operands = self._found_by(others)
        computing = {n for n in numbers if not operands.isdisjoint(self.eager.run.operations[n].inputs)}
        if computing:
            return computing
        self._passing[node] = list(sources)
        fingerprints = self.eager.run.fingerprints
        before = [self.tensors[source.name or ""] for source in sources]
        if any(own.same_layout(known) for own in before):
            self._unchanging.add(node)
        alike = {
            number
            for value in candidates
            if (after := fingerprints[value]) is not None and known.same_layout(after)
            for number in self.eager.makers.get(value, ())
            if number in self.eager.passing
            and any(
                (given := fingerprints[source]) is not None and any(own.same_layout(given) for own in before)
                for source in self.eager.run.operations[number].inputs
            )
        }
        if any((own := self.tensors.get(v.name or "")) is not None and own.is_operand for v in others):
            return alike | (numbers - self.eager.passing)
        return alike

    def _keep_those_read(self, node: ir.Node, results: Mapping[ir.Value, set[int]]) -> None:
        """Of operators in several calls, those whose results were read by what stands for the node's readers."""
        for output in node.outputs:
            numbers = self._counterparts.get(output, [])
            if len({self.eager.call(number) for number in numbers}) < 2:
                continue
            _, readers = self._group(node)
            read = set(results.get(output, ())).union(*(self.eager.run.operations[n].inputs for n in readers))
            made = {n: self.eager.spread(self.eager.run.operations[n].outputs) for n in numbers}
            serving = [number for number in numbers if not made[number].isdisjoint(read)]
            if serving:
                self._served.add(node)
                self._counterparts[output] = serving
                self.found[output] = self.found[output] & set().union(*(made[n] for n in serving)) or self.found[output]

    def _found_by(self, values: Iterable[ir.Value]) -> set[int]:
        return set().union(*(self.found.get(value, set()) for value in values))

    # --- owners ------------------------------------------------------------------------------------------------

    def attributions(self) -> dict[ir.Node, Attribution]:
        """The owner of each node for which there is evidence."""
        known: dict[ir.Node, Attribution] = {}
        for node in self._nodes:
            numbers = self.counterparts(node)
            if numbers:
                known[node] = self._by_value(node, numbers)
        for node in reversed(self._nodes):
            if node not in known:
                attribution = self._by_region(node, known) or self._by_weights(node, None)
                if attribution is not None:
                    known[node] = attribution
        return known

    def holders(self) -> Iterator[tuple[ir.Node, Operation]]:
        """The nodes that have bodies, each with the operator that it stands for."""
        for node in self._nodes:
            if any(True for _ in subgraphs_of(node)):
                for number in self.counterparts(node):
                    if self.eager.run.operations[number].bodies:
                        yield node, self.eager.run.operations[number]
                        break

    def _by_value(self, node: ir.Node, numbers: list[int]) -> Attribution:
        callers = self._callers(numbers)
        owner = callers[0]
        if node in self._unchanging:
            # The end of what came before, the beginning of what comes after, or a call that did nothing in between.
            around = [*callers, *self._makers([node]), *self._callers(self._group(node)[1])]
            return self._common(around, confidence.PASSED_ON)
        if len(callers) == 1 and node in self._passing:
            return confidence.laid_out_by(owner)
        if len(callers) == 1:
            return self._computed_by(owner, node, numbers)
        single_output = sum(value in self._counterparts for value in node.outputs) == 1
        alone = all(self._sharers[number] == 1 for number in numbers)
        if single_output and alone and node in self._served:
            return confidence.merged_by_value(owner, callers[1:])
        return self._common(callers, confidence.EQUAL_VALUES)

    def _computed_by(self, owner: CallId, node: ir.Node, numbers: list[int]) -> Attribution:
        region = self.eager.region(numbers, self._found_by(self._reads[node]), self._survivors)
        fused = set(self._callers(n for n in region if n not in self.eager.passing)) - {owner}
        if fused:
            return confidence.fused_by_value(owner, fused)
        if any((known := self.tensors.get(v.name or "")) is not None and known.is_distinctive for v in node.outputs):
            return confidence.computed_by_value(owner)
        return confidence.computed_from_same_inputs(owner)

    def _makers(self, nodes: Iterable[ir.Node]) -> list[CallId]:
        """The calls that made what these nodes pass on, if they do."""
        numbers: list[int] = []
        seen: set[ir.Node] = set()
        waiting = [node for node in nodes if node in self._passing]
        while waiting:
            for value in self._passing[waiting.pop()]:
                maker = value.producer()
                if maker is None or maker in seen:
                    continue
                seen.add(maker)
                numbers += self.counterparts(maker)
                if maker in self._passing and not self.counterparts(maker):
                    waiting.append(maker)
        return self._callers(numbers)

    def _callers(self, numbers: Iterable[int]) -> list[CallId]:
        return list(dict.fromkeys(self.eager.call(number) for number in numbers))

    def _common(self, callers: Iterable[CallId], evidence: str) -> Attribution:
        return confidence.one_of_candidates(callers, evidence, self._calls)

    def _by_region(self, node: ir.Node, known: Mapping[ir.Node, Attribution]) -> Attribution | None:
        """The owner of a node whose value nobody computed: whoever ran what lies between the matched tensors.

        The node and its readers, until all that leaves is matched, stand for what eager PyTorch ran between the
        same tensors.
        """
        group, starts = self._group(node)
        if not starts:
            return None
        members = set(group)
        entering = [v for n in group for v in self._reads[n] if v.producer() not in members]
        region = self.eager.region(starts, self._found_by(entering), self._survivors)
        callers = self._callers([*starts, *(n for n in region if n not in self.eager.passing)])
        # What passes on a value may as well be the end of what came before as the beginning of what comes after.
        callers += self._makers(n for n in group if not self.counterparts(n))
        if node in self._constant:
            behind = self.eager.constants_behind(starts)
            callers += self._callers(number for number in behind if number not in self.eager.passing)
        if len(set(callers)) > 1:
            decided = _merged_with([known[n] for n in group if self.counterparts(n)], callers)
            decided = decided or self._by_weights(node, callers)
            if decided is not None:
                return decided
        return self._common(callers, confidence.NO_SUCH_VALUE)

    def _group(self, node: ir.Node) -> tuple[list[ir.Node], list[int]]:
        """The node with its consumers, until each is matched; and the operators that those stand for."""

        def consumers(member: ir.Node) -> Iterable[ir.Node]:
            if member is not node and self.counterparts(member):
                return ()
            return (consumer for value in member.outputs for consumer in self._consumers.get(value, ()))

        group = downstream(node, consumers, self._budget)
        return group, list(dict.fromkeys(number for member in group[1:] for number in self.counterparts(member)))

    def _by_weights(self, node: ir.Node, among: Sequence[CallId] | None) -> Attribution | None:
        """The owner of a node by the weights it reads, if just one of the calls in question read them."""
        weights = [v for v in self._reads[node] if v.is_initializer() and v in self.found]
        readers = {
            self.eager.call(number)
            for value in self._found_by(weights)
            for number in self.eager.readers.get(value, ())
            if number not in self.eager.passing
        }
        if among is not None:
            readers &= set(among)
        if len(readers) != 1:
            return None
        return confidence.only_consumer_of_weight(readers.pop())


def _merged_with(ends: Sequence[Attribution], callers: Iterable[CallId]) -> Attribution | None:
    """The attribution of a node that only helps to make what several calls made alike, each in one operator."""
    first = ends[0]
    if first.kind is not Kind.MERGED or {first.owner, *first.contributors} != set(callers):
        return None
    if any((end.owner, end.kind, end.contributors) != (first.owner, first.kind, first.contributors) for end in ends):
        return None
    return confidence.part_of_merged(first)


def _results(graph: ir.Graph, values: Sequence[int]) -> dict[ir.Value, set[int]]:
    """For each output of the graph the values that were returned: the one in its place, or all."""
    found: dict[ir.Value, set[int]] = {}
    for place, output in enumerate(graph.outputs):
        in_place = values[place : place + 1] if len(values) == len(graph.outputs) else values
        found.setdefault(output, set()).update(in_place)
    return found


def _in_order(reads: Mapping[ir.Node, Sequence[ir.Value]]) -> list[ir.Node]:
    """The nodes behind those they read from: some tools write them in any order."""
    found: dict[ir.Node, None] = {}
    for start in reads:
        waiting = [start]
        opened: set[ir.Node] = set()
        while waiting:
            node = waiting[-1]
            makers = [m for v in reads[node] if (m := v.producer()) in reads and m not in found and m not in opened]
            if node in found or not makers or node in opened:
                found.setdefault(node)
                waiting.pop()
            else:
                waiting.extend(maker for maker in makers if maker is not None)
            opened.add(node)
    return list(found)


def _read_values(node: ir.Node) -> list[ir.Value]:
    """The values a node reads: its inputs, and what its bodies read, wherever that comes from."""
    values = [value for value in node.inputs if value is not None]
    bodies = [body for _, body in subgraphs_of(node)]
    while bodies:
        body = bodies.pop()
        values.extend(body.outputs)
        for inner in body:
            values.extend(value for value in inner.inputs if value is not None)
            bodies.extend(deeper for _, deeper in subgraphs_of(inner))
    return values
