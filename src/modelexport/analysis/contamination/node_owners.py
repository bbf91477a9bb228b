"""The recorded owner and contributors of each node."""

from __future__ import annotations

import copy
import dataclasses

from modelexport.analysis.contamination.call_index import ROOT, CallIndex
from modelexport.graph import FlowGraph
from modelexport.hierarchy import HierarchyDocument, Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict between the owners of nodes and other evidence.

    Attributes:
        nodes: The nodes of which one has a wrong owner.
        reason: The conflict in words.
    """

    nodes: tuple[int, ...]
    reason: str


class NodeOwners:
    """The owner and the contributors of each node, as call numbers.

    Attributes:
        contributors: For each node the other calls whose work it does.
        is_shared: For each node whether it does the work of several calls (fused or merged).
        is_inferred: For each node whether its owner was inferred from data flow.
        is_common_caller: For each node whether its owner was inferred as a common caller of the contributors.
    """

    def __init__(self, document: HierarchyDocument, flow: FlowGraph, calls: CallIndex) -> None:
        records = {record.id: record for record in document.nodes}
        self._recorded: list[int] = []
        self._replaced: dict[int, int] = {}
        self.contributors: list[tuple[int, ...]] = []
        self.is_shared: list[bool] = []
        self.is_inferred: list[bool] = []
        self.is_common_caller: list[bool] = []
        for node_id in flow.node_ids:
            record = records.get(node_id)
            numbers = calls.numbers
            self._recorded.append(numbers.get(record.module, ROOT) if record is not None else ROOT)
            others = record.contributors if record is not None else ()
            kind = record.kind if record is not None else Kind.INFERRED
            self.is_shared.append(kind in (Kind.FUSED, Kind.MERGED))
            self.is_inferred.append(kind == Kind.INFERRED)
            self.is_common_caller.append(kind == Kind.INFERRED and bool(others))
            self.contributors.append(tuple(numbers[other] for other in others if other in numbers))
        self._nodes: dict[int, list[int]] = {}
        for node, owner in enumerate(self._recorded):
            self._nodes.setdefault(owner, []).append(node)

    def with_owner(self, node: int, owner: int) -> NodeOwners:
        """The same owners, except for one node. Its contributors and `recorded_nodes` stay."""
        other = copy.copy(self)
        other._replaced = {**self._replaced, node: owner}
        return other

    def owner(self, node: int) -> int:
        """The owner of a node."""
        return self._replaced.get(node, self._recorded[node])

    def calls_of(self, node: int) -> tuple[int, ...]:
        """The owner of a node, then its contributors."""
        return (self._replaced.get(node, self._recorded[node]), *self.contributors[node])

    def recorded_nodes(self, call: int) -> list[int]:
        """The nodes that the document records as owned by a call."""
        return self._nodes.get(call, [])
