"""Which attributions the file itself contradicts: tensors that cross a call's boundary where none was recorded.

What a document says is checked against what it says elsewhere. A call's boundary was recorded when the model ran,
apart from the owners of nodes; the graph says which node reads what. A node owned by a call that did not run it
reads tensors that never entered that call, makes some that never left it, and leaves a gap where it was taken from.
No operator, node or module is known by its name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import onnx

from modelexport.analysis.contamination.call_index import ROOT, CallIndex
from modelexport.analysis.contamination.claimed_owners import Claims, Contradiction, Suspicion, Weighed, Witness
from modelexport.analysis.contamination.subgraph_rules import BodyRules
from modelexport.analysis.contamination.weight_owners import lost_weights, weight_holders
from modelexport.graph import NOBODY, FlowGraph
from modelexport.hierarchy import ModuleRecord, contains

# Contributors beyond these are looked up, not tried one by one: a mask may serve a hundred layers.
_TRIED = 8
_WHOLE_NUMBERS = frozenset(
    {
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
        onnx.TensorProto.BOOL,
    }
)

# Where more owners than these are contradicted, the hierarchy as a whole is that of another graph: for the rest it is
# not asked which owner would be right, and no file can keep us busy for long.
MOST_WEIGHED = 2000


class FlowJudge:
    """Says what the file contradicts; built once for a file, to judge any claims about it."""

    def __init__(
        self, flow: FlowGraph, calls: CallIndex, modules: Sequence[ModuleRecord], witness: Witness | None = None
    ) -> None:
        self.flow = flow
        self.calls = calls
        self._witness = witness
        self._holders = weight_holders(flow, modules)
        self._lost = lost_weights(flow, modules)
        self._paths = [record.path for record in calls.records]
        self._called = set(self._paths)
        self._bodies = BodyRules(flow, calls) if any(flow.bodies) else None
        self._leaving: dict[int, list[int]] = {}
        for call, side in enumerate(calls.recorded_outputs):
            for tensor in side.tensors:
                self._leaving.setdefault(tensor, []).append(call)
        # What PyTorch holds as plain numbers, constants included, crosses boundaries without a trace.
        self._free = [flow.constant[tensor] or self._is_number(tensor) for tensor in range(len(flow.names))]

    def _is_number(self, tensor: int) -> bool:
        """Whether PyTorch may have held this as numbers of the host: a size, an index, a list of them."""
        kind = self.flow.types.get(tensor)
        if kind is None:
            return True
        if kind.shape == ():
            return True
        return kind.element in _WHOLE_NUMBERS and (kind.shape is None or len(kind.shape) == 1)

    # --- one node ----------------------------------------------------------------------------------------------

    def contradictions(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """What contradicts the owner of a node, with all other owners as they are claimed."""
        if self._witness is not None:
            yield from self._witness.contradictions(node, claims)
        yield from self._reading(node, claims)
        for tensor in self.flow.makes[node]:
            yield from self._leaving_unseen(node, tensor, claims)
            yield from self._missing_where_it_left(node, tensor, claims)
        yield from self._serving_nobody(node, claims)
        yield from self._owner_has_no_part(node, claims)
        yield from self._left_and_came_back(node, claims)
        if self._bodies is not None:
            yield from self._bodies.contradictions(node, claims)
        if claims.common[node] and not all(
            self.calls.encloses(claims.owners[node], other) for other in claims.contributors[node]
        ):
            yield Contradiction((node,), "its owner is said to be a common caller of its contributors, and is not")

    def _reading(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        for tensor in dict.fromkeys(self.flow.reads[node]):
            if tensor in self.flow.weights:
                yield from self._foreign_weight(node, tensor, claims)
            elif tensor in self.flow.formal:
                continue
            elif not self._free[tensor]:
                if self.flow.makers[tensor] == NOBODY and self._is_size_for(node, claims):
                    continue
                yield from self._edge(self.flow.makers[tensor], tensor, node, claims)
            elif self.flow.makers[tensor] != NOBODY:
                # Made for this node alone, it would be this node that is in the wrong place.
                made_for = self._serving_nobody(self.flow.makers[tensor], claims)
                yield from (found for found in made_for if node in found.nodes)

    def _is_size_for(self, node: int, claims: Claims) -> bool:
        """Whether nobody ran the node, and it only gives numbers: exporters read the size of an axis from the model's
        own input, for whichever call needs it."""
        return claims.inferred[node] and all(self._free[tensor] for tensor in self.flow.makes[node])

    def _leaving_unseen(self, node: int, tensor: int, claims: Claims) -> Iterator[Contradiction]:
        if self._free[tensor]:
            return
        for reader in self.flow.readers[tensor]:
            yield from self._edge(node, tensor, reader, claims)

    def _edge(self, maker: int, tensor: int, reader: int, claims: Claims) -> Iterator[Contradiction]:
        """A tensor may go from call to call only where it was seen to leave the one and to enter the other."""
        sources = claims.of(maker) if maker != NOBODY else (ROOT,)
        if self._may_flow(sources, tensor, claims.of(reader)):
            return
        if self._witness is not None and maker != NOBODY:
            # The exporter keeps one of several equal nodes; where the values come from is the witness's to judge.
            makers = self._witness.computed_by(maker)
            if makers and self._may_flow(makers, tensor, claims.of(reader)):
                return
        nodes = (maker, reader) if maker != NOBODY else (reader,)
        source = self.calls.ids[sources[0]] or "(root)"
        target = self.calls.ids[claims.owners[reader]] or "(root)"
        yield Contradiction(
            nodes,
            f"{self._name(tensor)} goes from {source} to {target}, "
            "and was not seen to leave the one and to enter the other",
        )

    def _may_flow(self, sources: Sequence[int], tensor: int, targets: Sequence[int]) -> bool:
        # A caller among the sources is found in the chain of a target; trying all pairs is for the few.
        known = set(sources)
        for target in targets:
            for call in self.calls.chain(target):
                if call in known and self._enters(target, call, tensor):
                    return True
            if ROOT in known and self._enters(target, ROOT, tensor):
                return True
        return any(
            self._leaves(source, target, tensor) and self._enters(target, source, tensor)
            for source in sources[:_TRIED]
            for target in targets[:_TRIED]
        )

    def _leaves(self, source: int, target: int, tensor: int) -> bool:
        kind = self.flow.types.get(tensor)
        return all(
            not self.calls.recorded[call] or self.calls.outputs[call].may_have(tensor, kind)
            for call in self.calls.between(source, target)
        )

    def _enters(self, target: int, source: int, tensor: int) -> bool:
        kind = self.flow.types.get(tensor)
        return all(
            not self.calls.recorded[call] or self.calls.inputs[call].may_have(tensor, kind)
            for call in self.calls.between(target, source)
        )

    def _missing_where_it_left(self, node: int, tensor: int, claims: Claims) -> Iterator[Contradiction]:
        """What left a call was made inside of it, or had entered it."""
        if self.flow.constant[tensor] or (
            self._witness is not None and claims.owners[node] in self._witness.computed_by(node)
        ):
            # A constant may come from anywhere; and where two calls computed the same, one node may stand for both.
            return
        for call in self._leaving.get(tensor, ()):
            if not self._may_pass_on(call, node, tensor, claims) and not any(
                self.calls.encloses(call, claimed) for claimed in claims.of(node)
            ):
                yield Contradiction(
                    (node,),
                    f"{self._name(tensor)} left {self.calls.ids[call]}, which was not given it: it was made there",
                )

    def _may_pass_on(self, call: int, node: int, tensor: int, claims: Claims) -> bool:
        """Whether the call may have returned what it was given; a tensor may have lost its name on the way in."""
        kind = self.flow.types.get(tensor)
        inputs = self.calls.inputs[call]
        if tensor in inputs.tensors or not claims.contributors[node] or not claims.shared[node]:
            return inputs.may_have(tensor, kind)
        # The inner tensors of fused calls have no name either. This one's result left its owner, by some name.
        return inputs.may_have(tensor, kind) and self.calls.outputs[claims.owners[node]].may_have(tensor, kind)

    def _foreign_weight(self, node: int, tensor: int, claims: Claims) -> Iterator[Contradiction]:
        """A weight is read where its module runs, by a caller that takes it from there, or where it was passed to."""
        holders = self._holders.get(tensor)
        if not holders or self._is_one_number(tensor):
            return
        for claimed in claims.of(node):
            path = self._paths[claimed]
            if any(contains(holder, path) for holder in holders):
                return
            if any(contains(path, holder) for holder in holders):
                if (
                    len(holders) > 1
                    or holders[0] not in self._called
                    or self._is_read_inside(holders[0], tensor, claims)
                ):
                    return
                if self._lost_such_a_weight(path, tensor):
                    return
                yield Contradiction(
                    (node,),
                    f"it reads {self._name(tensor)}, a weight of {holders[0]}, which ran and has no node that reads it",
                )
                return
            if self._enters(claimed, self._nearest_with(holders, claimed), tensor):
                return
            if self._lost_such_a_weight(path, tensor):
                return
        if any(self._is_read_inside(holder, tensor, claims) for holder in holders):
            # Its modules have their part. Who else reads it may have made a constant with the same content.
            return
        yield Contradiction(
            (node,),
            f"it reads {self._name(tensor)}, a weight of {holders[0] or '(root)'}, "
            "which its owner neither holds nor was given",
        )

    def _nearest_with(self, holders: Sequence[str], call: int) -> int:
        """The innermost call around this one whose module has one of these inside, and can take their weights."""
        around = (c for c in self.calls.chain(call) if any(contains(self._paths[c], holder) for holder in holders))
        return next(around, ROOT)

    def _is_read_inside(self, path: str, tensor: int, claims: Claims) -> bool:
        """Whether a node of the module, or of one inside it, reads the weight."""
        return any(
            contains(path, self._paths[claimed])
            for reader in self.flow.readers[tensor]
            for claimed in claims.of(reader)
        )

    def _is_one_number(self, tensor: int) -> bool:
        """Whether a weight may stand for anybody's constant: exporters keep one of several with the same content."""
        kind = self.flow.types.get(tensor)
        return kind is not None and kind.shape is not None and all(size == 1 for size in kind.shape)

    def _lost_such_a_weight(self, path: str, tensor: int) -> bool:
        """Whether the owner's own weight may be this one: exporters keep one of several with the same content."""
        kind = self.flow.types.get(tensor)
        lost = self._lost.get(kind, ()) if kind is not None else ()
        return any(contains(path, holder) or contains(holder, path) for holder in lost)

    def _serving_nobody(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """Constants and sizes are shared freely, but made for somebody: one reader at least is where it may go."""
        makes = self.flow.makes[node]
        if not makes or not all(self._free[tensor] for tensor in makes):
            return
        uses = [(tensor, reader) for tensor in makes for reader in self.flow.readers[tensor]]
        if not uses or any(tensor in self.flow.results for tensor in makes):
            return
        if not any(self._may_flow(claims.of(node), tensor, claims.of(reader)) for tensor, reader in uses):
            # With several readers of one call it is not one of those that is wrong.
            suspects = (node, uses[0][1]) if len(uses) == 1 else (node,)
            yield Contradiction(suspects, f"nothing that reads {self._name(makes[0])} is where its owner could pass it")

    def _left_and_came_back(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """A call runs once, from beginning to end: nothing that it made is worked on outside and then read inside."""
        claimed = claims.of(node)
        given = {
            claims.owners[self.flow.makers[tensor]]: tensor
            for tensor in self.flow.reads[node]
            if not self.flow.constant[tensor] and self.flow.makers[tensor] != NOBODY
        }
        taken = {
            claims.owners[reader]: tensor for tensor in self.flow.makes[node] for reader in self.flow.readers[tensor]
        }
        for source, tensor in given.items():
            for target in taken:
                around = self.calls.innermost_around((source, target))
                if around != ROOT and not any(self.calls.encloses(around, call) for call in claimed):
                    yield Contradiction(
                        (node,),
                        f"it works on {self._name(tensor)}, made in {self.calls.ids[around]}, and its result is read "
                        "there again: a call does not pause",
                    )
                    return

    def _owner_has_no_part(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """Where several calls share a node, its owner is one whose work it does: the result is there or leaves it."""
        if not claims.contributors[node] or not claims.shared[node]:
            return
        if all(self.flow.constant[tensor] for tensor in self.flow.makes[node]):
            # A constant that several calls made alike stays the first one's, also where its own use was folded away.
            return
        owner = (claims.owners[node],)
        uses = [(tensor, reader) for tensor in self.flow.makes[node] for reader in self.flow.readers[tensor]]
        returned = [tensor for tensor in self.flow.makes[node] if tensor in self.flow.results]
        if any(self._may_flow(owner, tensor, (ROOT,)) for tensor in returned):
            return
        if uses and not any(self._may_flow(owner, tensor, claims.of(reader)) for tensor, reader in uses):
            yield Contradiction((node,), "nothing that reads its results is where its owner could pass them")

    def _name(self, tensor: int) -> str:
        return repr(self.flow.names[tensor])

    # --- the whole file ----------------------------------------------------------------------------------------

    def affected_by(self, moved: Iterable[int], claims: Claims) -> set[int]:
        """The nodes for which something may change when these get another owner."""
        flow = self.flow
        found: set[int] = set()
        for node in moved:
            found.add(node)
            for tensor in flow.reads[node]:
                if tensor in flow.weights:
                    found.update(flow.readers[tensor])
                elif flow.makers[tensor] != NOBODY:
                    # A constant that serves nobody any more is told of with all that read it.
                    found.add(flow.makers[tensor])
                    found.update(flow.readers[tensor] if self._free[tensor] else ())
            for tensor in flow.makes[node]:
                found.update(flow.readers[tensor])
            if self._bodies is not None:
                found.update(self._bodies.affected_by(node, claims))
        return found

    def judge(self, claims: Claims, among: Iterable[int] | None = None) -> list[Suspicion]:
        """The nodes that are owned by the wrong call, as far as the file shows it.

        A tensor that goes where it cannot go has two ends, and one wrong owner spoils all ends around it. So the
        node is taken for wrong for which another owner mends most; with that one in place, the rest is looked at
        again.

        Args:
            claims: Who is said to own what.
            among: The nodes to look at; None stands for all.
        """
        owners = list(claims.owners)
        pending: list[tuple[int, int]] = []
        unweighed: list[Suspicion] = []
        for node in range(len(self.flow.ids)) if among is None else sorted(among):
            first = next(self.contradictions(node, claims), None)
            if first is not None and len(pending) < MOST_WEIGHED:
                heapq.heappush(pending, (-self._weigh(node, claims).gain, node))
            elif first is not None:
                unweighed.append(Suspicion(node, (), (first.reason,)))
        suspicions: list[Suspicion] = []
        try:
            while pending:
                gain, node = heapq.heappop(pending)
                weighed = self._weigh(node, claims)
                if not weighed.reasons:
                    continue
                if -weighed.gain > gain:
                    # What was mended since has made this one less likely.
                    heapq.heappush(pending, (-weighed.gain, node))
                    continue
                suspicions.append(weighed.suspicion(node))
                if weighed.supported:
                    claims.owners[node] = weighed.supported[0]
        finally:
            claims.owners[:] = owners
        return suspicions + unweighed

    def _weigh(self, node: int, claims: Claims) -> Weighed:
        """How much would be mended by another owner for this node, and by which."""
        reasons = list(self.contradictions(node, claims))
        owner = claims.owners[node]
        scores: dict[int, int] = {}
        for candidate in self._candidates(node, claims) if reasons else ():
            claims.owners[node] = candidate
            scores[candidate] = sum(1 for _ in self.contradictions(node, claims))
        claims.owners[node] = owner
        scores.pop(owner, None)
        fewest = min(scores.values(), default=len(reasons))
        if fewest >= len(reasons):
            return Weighed(reasons, 0, ())
        supported = tuple(candidate for candidate, score in scores.items() if score == fewest)
        return Weighed(reasons, len(reasons) - fewest, supported)

    def _candidates(self, node: int, claims: Claims) -> list[int]:
        """The calls around the node, likeliest first: of its neighbours, and their callers."""
        flow = self.flow
        makers = [flow.makers[tensor] for tensor in flow.reads[node] if flow.makers[tensor] != NOBODY]
        readers = [reader for tensor in flow.makes[node] for reader in flow.readers[tensor]]
        found: dict[int, None] = dict.fromkeys(self._witness.candidates(node)) if self._witness is not None else {}
        for tensor in flow.makes[node]:
            found.update(dict.fromkeys(self._leaving.get(tensor, ())))
        for neighbour in (*makers, *readers):
            found.update(dict.fromkeys(claims.of(neighbour)[:_TRIED]))
        for call in list(found):
            found.update(dict.fromkeys(self.calls.chain(call)))
        found[ROOT] = None
        return list(found)
