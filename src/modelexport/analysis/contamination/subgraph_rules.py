"""What the bodies of branches and loops say against owners: a call in one of them is there from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.analysis.contamination.call_index import CallIndex
from modelexport.analysis.contamination.claimed_owners import Claims, Contradiction
from modelexport.graph import NOBODY, FlowGraph

# So many nodes of a call tell where it ran, and so many readers of a constant where that is needed.
_WITNESSES = 32


class BodyRules:
    """The rules for files whose nodes have bodies."""

    def __init__(self, flow: FlowGraph, calls: CallIndex) -> None:
        self.flow = flow
        self.calls = calls
        self._held: dict[int, list[int]] = {}
        for node, holder in enumerate(flow.holders):
            if holder != NOBODY:
                self._held.setdefault(holder, []).append(node)

    def contradictions(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """What the bodies say against the owner of a node, with all other owners as they are claimed."""
        yield from self._beside_the_holder(node, claims)
        yield from self._in_another_body(node, claims)

    def affected_by(self, node: int, claims: Claims) -> Iterator[int]:
        """The nodes for which something may change here when this one gets another owner."""
        yield from self._held.get(node, ())
        if self.flow.holders[node] != NOBODY:
            yield self.flow.holders[node]
        for call in self.calls.chain(claims.owners[node]):
            yield from claims.owned(call)

    def _beside_the_holder(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """What runs in a body runs inside the call of the node that holds the body."""
        pairs = [(inner, node) for inner in self._held.get(node, ())]
        if self.flow.holders[node] != NOBODY:
            pairs.append((node, self.flow.holders[node]))
        for inner, holder in pairs:
            if not any(self.calls.encloses(call, claims.owners[inner]) for call in claims.of(holder)):
                yield Contradiction(
                    (inner, holder),
                    f"{self.flow.ids[inner]!r} stands in a body of {self.flow.ids[holder]!r}, "
                    "and its owner did not run inside the owner of that",
                )

    def _in_another_body(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """All that a call runs it runs in one body; a constant it makes is read there, or where it may be handed to."""
        uses = self._uses(node) if self._is_constant(node) else None
        if uses is not None and (not uses or claims.contributors[node]):
            # One that several calls made alike stays the first one's, also where its own use was folded away.
            return
        for call in self.calls.chain(claims.owners[node]):
            elsewhere = [
                other for other in claims.owned(call)[:_WITNESSES] if other != node and not self._is_constant(other)
            ]
            if uses is None:
                apart = [other for other in elsewhere if not self._may_share_a_call(node, other, call, claims)]
            else:
                # Exporters lift constants out of bodies, and what is made outside may be handed in.
                apart = [
                    other for other in elsewhere if not any(self._may_hand_in(other, use, call, claims) for use in uses)
                ]
            if len(apart) > len(elsewhere) / 2:
                told = "run in another body than it" if uses is None else "run in another body than what reads it"
                yield Contradiction((node,), f"the nodes of {self.calls.ids[call]} {told}: {self.flow.ids[apart[0]]!r}")
                return

    def _is_constant(self, node: int) -> bool:
        return all(self.flow.constant[tensor] for tensor in self.flow.makes[node])

    def _uses(self, node: int) -> list[int]:
        """The nodes that read what is made of a constant, where that is no constant any more."""
        found: dict[int, None] = {}
        seen, waiting = {node}, [node]
        while waiting and len(found) < _WITNESSES:
            for tensor in self.flow.makes[waiting.pop()]:
                for reader in self.flow.readers[tensor]:
                    if reader in seen:
                        continue
                    seen.add(reader)
                    if self._is_constant(reader):
                        waiting.append(reader)
                    else:
                        found[reader] = None
        return list(found)

    def _may_hand_in(self, source: int, use: int, call: int, claims: Claims) -> bool:
        """Whether a constant made where the one node runs is in reach of the other."""
        inner = use
        while inner != NOBODY:
            if self.flow.bodies[inner] == self.flow.bodies[source]:
                return True
            inner = self.flow.holders[inner]
        return self._may_share_a_call(source, use, call, claims)

    def _may_share_a_call(self, node: int, other: int, call: int, claims: Claims) -> bool:
        """Whether both stand in one body, or one in a body that a node of the same call holds."""
        bodies = self.flow.bodies
        if bodies[node] is None or bodies[other] is None or bodies[node] == bodies[other]:
            return True
        for inner, outer in ((node, other), (other, node)):
            holder = self.flow.holders[inner]
            while holder != NOBODY and self.calls.encloses(call, claims.owners[holder]):
                if bodies[holder] == bodies[outer]:
                    return True
                holder = self.flow.holders[holder]
        return False
