"""Who is said to own each node, and what is said against it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from modelexport.analysis.contamination.call_index import ROOT, CallIndex
from modelexport.graph import FlowGraph
from modelexport.hierarchy import HierarchyDocument, Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Contradiction:
    """What cannot be as the document says.

    Attributes:
        nodes: The nodes whose owner may be the wrong one.
        reason: What contradicts, in words.
    """

    nodes: tuple[int, ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Suspicion:
    """A node whose owner is contradicted, and the owners that nothing contradicts.

    Attributes:
        node: The node.
        supported: The calls that the evidence supports, likeliest first.
        reasons: What contradicts the owner it has.
        rivals: Other nodes of which one may be wrong instead of this.
    """

    node: int
    supported: tuple[int, ...]
    reasons: tuple[str, ...]
    rivals: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    reasons: list[Contradiction]
    gain: int
    supported: tuple[int, ...]

    def suspicion(self, node: int) -> Suspicion:
        rivals = tuple(sorted({other for reason in self.reasons for other in reason.nodes} - {node}))
        return Suspicion(node, self.supported, tuple(dict.fromkeys(r.reason for r in self.reasons)), rivals)


class Claims:
    """For each node the call that owns it and those that contributed; owners can be tried out."""

    def __init__(self, document: HierarchyDocument, flow: FlowGraph, calls: CallIndex) -> None:
        records = {record.id: record for record in document.nodes}
        self.owners: list[int] = []
        self.contributors: list[tuple[int, ...]] = []
        # Whether the node does the work of several calls; whether its owner was reasoned to be around them all.
        self.shared: list[bool] = []
        self.common: list[bool] = []
        self.inferred: list[bool] = []
        for identity in flow.ids:
            record = records.get(identity)
            numbers = calls.numbers
            self.owners.append(numbers.get(record.module, ROOT) if record is not None else ROOT)
            others = record.contributors if record is not None else ()
            kind = record.kind if record is not None else Kind.INFERRED
            self.shared.append(kind in (Kind.FUSED, Kind.MERGED))
            self.inferred.append(kind == Kind.INFERRED)
            self.common.append(kind == Kind.INFERRED and bool(others))
            self.contributors.append(tuple(numbers[other] for other in others if other in numbers))

        self._owned: dict[int, list[int]] = {}
        for node, owner in enumerate(self.owners):
            self._owned.setdefault(owner, []).append(node)

    def with_owner(self, node: int, owner: int) -> Claims:
        """These claims with another owner for one node."""
        other = copy.copy(self)
        other.owners = list(self.owners)
        other.owners[node] = owner
        other.contributors = list(self.contributors)
        other.contributors[node] = tuple(call for call in self.contributors[node] if call != owner)
        other._owned = dict(self._owned)
        other._owned[self.owners[node]] = [n for n in self.owned(self.owners[node]) if n != node]
        other._owned[owner] = sorted((*self.owned(owner), node))
        return other

    def owned(self, call: int) -> list[int]:
        """The nodes that the call was claimed to own, whatever was tried out since."""
        return self._owned.get(call, [])

    def of(self, node: int) -> tuple[int, ...]:
        """The owner, then the contributors."""
        return (self.owners[node], *self.contributors[node])


class Witness(Protocol):
    """Evidence from elsewhere than the file, such as a run of the model."""

    def contradictions(self, node: int, claims: Claims) -> Iterator[Contradiction]:
        """What contradicts the owner of a node."""
        ...

    def candidates(self, node: int) -> Iterable[int]:
        """The calls that may own it."""
        ...

    def computed_by(self, node: int) -> Sequence[int]:
        """The calls that computed the values it makes, those that only passed them on left out."""
        ...
