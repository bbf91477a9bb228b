"""Owners of a rewritten graph, from the owners of the graph it was rewritten from.

Optimizers fold, fuse and merge nodes but keep the names of the tensors that survive. A node of the rewritten
graph computes its outputs from its inputs; the nodes of the first graph that lie between the same tensors are
the region it now stands for, and the calls in that region are its owner and contributors. Nothing here knows
an operator: only producers, consumers, and which values are equal by construction.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass

from modelexport.attribution import Attribution, Kind
from modelexport.graph import graph_bodies
from modelexport.hierarchy import CallId, CallTree
from modelexport.numbering import ValueNumbers, attributes_key
from modelexport.resolution import COMMON_CALLER, DEFAULT_POLICY, ONE_REGION, ResolutionPolicy, complete

_SEVERAL_CALLS = 0.95

# A new node is looked at with this many of the nodes behind it at most: where more stand between it and a tensor that
# is known, its neighbours tell more.
_LARGEST_GROUP = 64
# Rewriting is local, so that all regions together hold each node a few times. Where they overlap more than this, the
# rest is told from the producer alone: the work stays linear whatever the graph.
_MOST_VISITS_PER_NODE = 32


@dataclasses.dataclass(frozen=True)
class Projection:
    """What the first graph says of the rewritten one.

    Attributes:
        attributions: The owner of every node.
        tensors: For each tensor of the first main graph that is still there, its name now; None where both graphs are
            the same one.
        constants: For each initializer that nodes of the first main graph computed, whose they were.
    """

    attributions: Mapping[ir.Node, Attribution]
    tensors: Mapping[str, str] | None = None
    constants: Mapping[str, Attribution] = dataclasses.field(default_factory=dict)


def project(
    first: ir.Model,
    owners: Mapping[ir.Node, Attribution],
    rewritten: ir.Model,
    calls: CallTree,
    recorded: Mapping[ir.Node, Attribution] | None = None,
    policy: ResolutionPolicy = DEFAULT_POLICY,
    same: Mapping[ir.Value, str] | None = None,
) -> Projection:
    """Carry the owners of `first` onto `rewritten`.

    Args:
        first: The graph before it was rewritten. It is changed: nodes that only pass a value on are removed.
        owners: The attribution of every node of `first`.
        rewritten: The graph that came out.
        calls: The module calls.
        recorded: What was recorded for nodes of `rewritten` themselves; used for those that nothing leads to.
        policy: How far nodes that nothing leads to are reasoned about.
        same: For tensors of `rewritten` the names that the same tensors have in `first`; by default they are the same
            where the name is.
    """
    # A node that was only there to pass a value on (dropout in evaluation mode) is no work; if the rewritten graph
    # still has one, it is found by the name of its output.
    by_output = {value.name: owners[node] for node in owners for value in node.outputs if value.name}
    aliases = _remove_passing_nodes(first)
    projector = _Projector(first, owners, by_output, calls, recorded or {}, same)
    projector.project_graph(rewritten.graph, first.graph)
    tensors = projector.surviving_tensors(rewritten)
    for name, value in aliases.items():
        if name not in tensors and value.name in tensors:
            tensors[name] = tensors[value.name]
    attributions = complete(rewritten, projector.found, calls, policy)
    return Projection(attributions, tensors, projector.folded_constants(rewritten))


def _remove_passing_nodes(model: ir.Model) -> dict[str, ir.Value]:
    """Take out the nodes that return their input; gives what the name of each one's output stood for."""
    passing = [
        (node, node.inputs[0], node.outputs[0])
        for node in model.graph
        if len(node.inputs) == len(node.outputs) == 1 and node.inputs[0] is not None
    ]
    named = [(node, source, result, result.name) for node, source, result in passing]
    IdentityEliminationPass()(model)
    aliases: dict[str, ir.Value] = {}
    stands_for: dict[ir.Value, ir.Value] = {}
    for node, source, result, name in named:
        if node.graph is None and name:
            stands_for[result] = aliases[name] = stands_for.get(source, source)
    return aliases


class _Projector:
    def __init__(
        self,
        first: ir.Model,
        owners: Mapping[ir.Node, Attribution],
        by_output: Mapping[str, Attribution],
        calls: CallTree,
        recorded: Mapping[ir.Node, Attribution],
        same: Mapping[ir.Value, str] | None,
    ) -> None:
        self._recorded = recorded
        self._same = same
        self.found: dict[ir.Node, Attribution] = {}
        self._first = first
        self._owners = owners
        self._by_output = by_output
        self._calls = calls
        self._numbers = ValueNumbers(first)
        self._survivors: set[int] = set()
        self._names: dict[ir.Value, ir.Value] = {}
        # What a tensor also is: the result of a node that did nothing to it and is gone.
        self._also: dict[ir.Value, ir.Value] = {}
        self._originals: set[ir.Value] = set()
        self._vanished: dict[int, frozenset[CallId]] = {}
        # The nodes whose results turned out to be equal to the one of this number.
        self._merged: dict[int, dict[ir.Node, None]] = {}
        self._visits_left = _MOST_VISITS_PER_NODE * (len(owners) + 1)

    def project_graph(self, graph: ir.Graph, first: ir.Graph) -> None:
        """Project a graph and the bodies in it."""
        # Names of the graphs around a body are known in it too.
        no_names: collections.ChainMap[str, ir.Value] = collections.ChainMap()
        waiting = [(graph, first, no_names)]
        graphs: list[ir.Graph] = []
        while waiting:
            current, before, around = waiting.pop()
            names = collections.ChainMap(_named_values(before), *around.maps)
            graphs.append(current)
            self._match_values(current, before, names)
            self._match_renamed(current)
            for node in current:
                for name, body in graph_bodies(node):
                    match = self._matching_body(node, name)
                    if match is not None:
                        waiting.append((body, match, names))
        for current in graphs:
            self._match_by_readers(current)
        self._originals = {*self._names.values(), *self._also.values()}
        self._survivors = {self._numbers.of(value) for value in self._originals}
        for current in graphs:
            self._match_merged(current)
        for current in graphs:
            self._project_nodes(current)

    def surviving_tensors(self, rewritten: ir.Model) -> dict[str, str]:
        """For each named tensor of the first main graph the rewritten graph's tensor of the same value."""
        by_number: dict[int, str] = {}
        itself: dict[ir.Value, str] = {}
        for value, original in (*self._names.items(), *self._also.items()):
            if value.name and value.graph is rewritten.graph:
                itself.setdefault(original, value.name)
                by_number.setdefault(self._numbers.of(original), value.name)
        found: dict[str, str] = {}
        for name, original in _named_values(self._first.graph).items():
            # Equal results that were not merged are still two.
            tensor = itself.get(original) or by_number.get(self._numbers.of(original))
            if tensor is not None:
                found[name] = tensor
        return found

    def folded_constants(self, rewritten: ir.Model) -> dict[str, Attribution]:
        """The initializers of the main graph that nodes of the first graph computed, each with whose they were."""
        found: dict[str, Attribution] = {}
        for name, value in rewritten.graph.initializers.items():
            original = self._names.get(value)
            producer = original.producer() if original is not None else None
            if original is not None and producer is not None and producer in self._owners:
                found[name] = _folded(self._owners[producer], self._merged_with(original))
        return found

    def _match_values(self, graph: ir.Graph, before: ir.Graph, names: Mapping[str, ir.Value]) -> None:
        for own, original in zip(graph.inputs, before.inputs, strict=False):
            self._names[own] = original
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *made):
            name = self._name_before(value)
            known = names.get(name) if name else None
            if known is not None:
                self._names[value] = known
        # Outputs may have been renamed; their order is kept.
        for own, original in zip(graph.outputs, before.outputs, strict=False):
            self._names.setdefault(own, original)

    def _match_renamed(self, graph: ir.Graph) -> None:
        """Find the nodes that have the name of another's result, since what that one did was nothing and it is gone."""
        known = {self._numbers.of(original) for original in self._names.values()}
        for node in graph:
            if len(node.outputs) != 1 or node.outputs[0] not in self._names or self._counterpart(node) is not None:
                continue
            value = node.outputs[0]
            inputs = [self._names.get(given) if given is not None else None for given in node.inputs]
            alike = self._numbers.alike(node, inputs)
            if not alike or self._numbers.of(alike[0].outputs[0]) in known:
                continue
            if all(map(_holds_the_same, node.inputs, inputs)):
                self._also[value] = self._names[value]
                self._names[value] = alike[0].outputs[0]

    def _match_by_readers(self, graph: ir.Graph) -> None:
        """What a value with a new name is: the one that its readers read in its place before.

        Only readers that do the same operation as before can tell, and they have to agree.
        """
        for node in reversed(list(graph)):
            for value in node.outputs:
                if value in self._names:
                    continue
                stood_for = {}
                for use in value.uses():
                    reader = self._counterpart(use.node)
                    original = reader.inputs[use.idx] if reader is not None and use.idx < len(reader.inputs) else None
                    if original is not None and self._numbers.is_dynamic(original):
                        stood_for[self._numbers.of(original)] = original
                if len(stood_for) == 1:
                    self._names[value] = next(iter(stood_for.values()))

    def _match_merged(self, graph: ir.Graph) -> None:
        """Find what is read in place of an equal result that is gone, where what made them equal came to light later.

        A size that is computed and one that is known are no equal values before constants are folded.
        """
        for node in graph:
            before = self._counterpart(node)
            if before is None or len(before.inputs) != len(node.inputs):
                continue
            for own, gone in zip(node.inputs, before.inputs, strict=True):
                kept = self._names.get(own) if own is not None else None
                if kept is not None and gone is not None:
                    self._merge(kept, gone)

    def _merge(self, kept: ir.Value, gone: ir.Value) -> None:
        """Two results that are one now: what made them is one too, as far back as the same was done for both."""
        waiting = [(kept, gone)]
        while waiting:
            kept, gone = waiting.pop()
            number, node, other = self._numbers.of(kept), kept.producer(), gone.producer()
            if node is None or other is None or other in self._merged.get(number, ()):
                continue
            if self._numbers.of(gone) in self._survivors or not _is_alike(node, other):
                continue
            if any(value is not None and self._numbers.of(value) == number for value in other.inputs):
                # It did nothing to what it was given.
                continue
            self._merged.setdefault(number, {})[other] = None
            pairs = zip(node.inputs, other.inputs, strict=True)
            waiting.extend((one, two) for one, two in pairs if one is not None and two is not None)

    def _matching_body(self, node: ir.Node, name: str) -> ir.Graph | None:
        for value in node.outputs:
            original = self._names.get(value)
            producer = original.producer() if original is not None else None
            for other, body in graph_bodies(producer) if producer is not None else ():
                if other == name:
                    return body
        return None

    def _project_nodes(self, graph: ir.Graph) -> None:
        strangers: list[ir.Node] = []
        for node in graph:
            attribution = self._project_node(node)
            if attribution is not None:
                self.found[node] = attribution
            else:
                strangers.append(node)
        for node in reversed(strangers):
            attribution = self._recorded.get(node) or self._project_stranger(node)
            if attribution is not None:
                self.found[node] = attribution

    def _project_node(self, node: ir.Node) -> Attribution | None:
        """The owner of a node one of whose outputs the first graph knew."""
        for value in node.outputs:
            original = self._names.get(value)
            producer = original.producer() if original is not None else None
            if original is None or producer is None or producer not in self._owners:
                continue
            if not node.inputs and producer.inputs:
                return _folded(self._owners[producer])
            region = [producer]
            if not self._is_same_operation(node, producer):
                region = self._region([producer], self._stops(self._entering([node])), node.op_identifier())
            return self._combine(self._owners[producer], region, original)
        before = (self._name_before(value) for value in node.outputs)
        return next((self._by_output[name] for name in before if name and name in self._by_output), None)

    def _name_before(self, value: ir.Value) -> str | None:
        return value.name if self._same is None else self._same.get(value)

    def _is_same_operation(self, node: ir.Node, producer: ir.Node) -> bool:
        """Whether `node` does just what `producer` did: then whatever it no longer reads from did no work."""
        if not _is_alike(node, producer):
            return False
        for own, original in zip(node.inputs, producer.inputs, strict=True):
            if original is None or own is None:
                if original is not own:
                    return False
            elif not self._numbers.is_dynamic(original):
                known = self._names.get(own)
                if known is None or self._numbers.of(known) != self._numbers.of(original):
                    return False
        return True

    def _project_stranger(self, node: ir.Node) -> Attribution | None:
        """The owner of a node with outputs nobody knew: it works for the known tensors behind it.

        The node and its consumers, until all that leaves is known, stand for a region of the first graph. The
        consumers that have a counterpart there are accounted for; what is left is what the node does.
        """
        group, leaving = self._group(node)
        if not leaving:
            return None
        producers = [p for value in leaving if (p := self._names[value].producer()) is not None]
        if not producers:
            return self._made_for([self._names[value] for value in leaving])
        region = self._region(producers, self._stops(self._entering(group)))
        counted = {self._counterpart(member) for member in group}
        left = [n for n in region if n not in counted] or region
        return self._replacing({self._owners[n].owner for n in left if n in self._owners})

    def _made_for(self, originals: Iterable[ir.Value]) -> Attribution | None:
        """The owner of new nodes that make what was given before, an input or a weight: those that read it."""
        readers = {use.node for original in originals for use in original.uses()}
        return self._replacing({self._owners[n].owner for n in readers if n in self._owners})

    def _replacing(self, owners: set[CallId]) -> Attribution | None:
        if not owners:
            return None
        owner = self._calls.innermost_around(owners)
        if len(owners) == 1:
            return Attribution(
                owner,
                Kind.INFERRED,
                ONE_REGION,
                "a new node; all that it replaces or works for was recorded for this call",
            )
        return Attribution(
            owner,
            Kind.INFERRED,
            COMMON_CALLER,
            "a new node; it replaces or serves nodes of several calls, of which this is the innermost around all",
            tuple(sorted(owners - {owner})),
        )

    def _group(self, node: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
        group: dict[ir.Node, None] = {node: None}
        leaving: dict[ir.Value, None] = {}
        waiting = collections.deque([node])
        while waiting:
            for value in waiting.popleft().outputs:
                if value in self._names:
                    leaving[value] = None
                    continue
                for use in value.uses():
                    if use.node not in group and len(group) < _LARGEST_GROUP:
                        group[use.node] = None
                        waiting.append(use.node)
        return list(group), list(leaving)

    def _counterpart(self, node: ir.Node) -> ir.Node | None:
        """The first graph's node that makes the same outputs by the same operation."""
        for value in node.outputs:
            original = self._names.get(value)
            producer = original.producer() if original is not None else None
            if producer is not None and producer.op_identifier() == node.op_identifier():
                return producer
        return None

    def _entering(self, group: Iterable[ir.Node]) -> list[ir.Value]:
        members = set(group)
        values = [value for node in members for value in _read_values(node)]
        return [value for value in values if value.producer() not in members]

    def _stops(self, values: Iterable[ir.Value]) -> set[int]:
        known = (names.get(value) for value in values for names in (self._names, self._also))
        return {self._numbers.of(original) for original in known if original is not None}

    def _region(
        self, producers: Iterable[ir.Node], stops: set[int], operation: ir.OperatorIdentifier | None = None
    ) -> list[ir.Node]:
        """The producers, and all nodes on ways back from them that end at one of the stops.

        Ways that end at another tensor which survived were cut by the rewriting (folded shape arithmetic), and
        values that need no input of the model are nobody's work here. Only what did this `operation` before may have
        taken up work whose result is still there for others.
        """
        region: dict[ir.Node, bool] = {}
        for producer in producers:
            self._walk(producer, stops, region, operation)
            region[producer] = True
        return [node for node, kept in region.items() if kept]

    def _walk(
        self,
        start: ir.Node,
        stops: set[int],
        region: dict[ir.Node, bool],
        operation: ir.OperatorIdentifier | None,
    ) -> None:
        stack: list[tuple[ir.Node, list[ir.Value]]] = [(start, list(_read_values(start)))]
        region.setdefault(start, False)
        while stack:
            node, values = stack[-1]
            if not values:
                stack.pop()
                if stack and region[node]:
                    region[stack[-1][0]] = True
                continue
            value = values.pop()
            if not self._numbers.is_dynamic(value):
                continue
            number = self._numbers.of(value)
            if number in stops:
                region[node] = True
                continue
            producer = value.producer()
            if producer is None or (number in self._survivors and node.op_identifier() != operation):
                continue
            if producer in region:
                region[node] = region[node] or region[producer]
                continue
            if self._visits_left <= 0:
                continue
            self._visits_left -= 1
            region[producer] = False
            stack.append((producer, list(_read_values(producer))))

    def _merged_with(self, value: ir.Value) -> frozenset[CallId]:
        """The calls that made an equal value which the rewritten graph no longer has."""
        number = self._numbers.of(value)
        if number not in self._vanished:
            self._vanished[number] = frozenset(
                call
                for node in (*self._numbers.producers(value), *self._merged.get(number, ()))
                if node in self._owners and self._originals.isdisjoint(node.outputs)
                for call in _workers(self._owners[node])
            )
        return self._vanished[number]

    def _combine(self, own: Attribution, region: list[ir.Node], value: ir.Value) -> Attribution:
        fused = {call for node in region if node in self._owners for call in _workers(self._owners[node])}
        fused -= {own.owner}
        merged = self._merged_with(value) - {own.owner}
        if not fused.issubset(own.contributors):
            kind, reason = Kind.FUSED, "one node now does the work of several calls; its result is this call's"
        elif not merged.issubset(own.contributors):
            kind, reason = Kind.MERGED, "equal nodes of several calls became one; this call's came first"
        else:
            return own
        contributors = tuple(sorted(fused | merged))
        return Attribution(own.owner, kind, min(own.confidence, _SEVERAL_CALLS), reason, contributors)


def _holds_the_same(value: ir.Value | None, before: ir.Value | None) -> bool:
    """Whether a value is the one of before: weights that were computed anew may have kept their name."""
    if value is None or before is None:
        return value is before
    one, other = value.const_value, before.const_value
    if one is other:
        return True
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(one.numpy(), other.numpy())


def _is_alike(node: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes do the same operation, on whatever they read."""
    if node.op_identifier() != other.op_identifier() or len(node.inputs) != len(other.inputs):
        return False
    return attributes_key(node) == attributes_key(other)


def _workers(found: Attribution) -> set[CallId]:
    """The calls whose work a node does: for one whose owner was only inferred, the others are no more than possible."""
    if found.kind is Kind.INFERRED:
        return {found.owner}
    return {found.owner, *found.contributors}


def _folded(own: Attribution, merged: Iterable[CallId] = ()) -> Attribution:
    return Attribution(
        own.owner,
        Kind.FOLDED,
        min(own.confidence, _SEVERAL_CALLS),
        "a constant that this call's nodes computed when the model ran",
        tuple(sorted({*own.contributors, *merged} - {own.owner})),
    )


def _named_values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values()]
    values.extend(value for node in graph for value in node.outputs)
    return {value.name: value for value in values if value.name}


def _read_values(node: ir.Node) -> list[ir.Value]:
    """The values a node reads: its inputs, and what its bodies read from the graphs around them."""
    values = [value for value in node.inputs if value is not None]
    bodies = [body for _, body in graph_bodies(node)]
    inside: set[ir.Value] = set()
    read: list[ir.Value] = []
    while bodies:
        body = bodies.pop()
        inside.update(_named_values(body).values())
        for inner in body:
            bodies.extend(deeper for _, deeper in graph_bodies(inner))
            read.extend(value for value in inner.inputs if value is not None)
        read.extend(body.outputs)
    return values + [value for value in read if value not in inside]
