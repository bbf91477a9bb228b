"""The nodes whose owner is most likely wrong, and the owners without a conflict."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

from modelexport.analysis.contamination.call_index import ROOT
from modelexport.analysis.contamination.flow_rules import FlowRules
from modelexport.analysis.contamination.node_owners import Conflict, NodeOwners
from modelexport.graph import NO_NODE

# With more conflicts than these, the document belongs to another graph. The remaining nodes are reported without a
# search for a better owner, which bounds the time that any file can take.
MAX_SEARCHED = 2000
# Of the calls that share a neighbour, these are tried: a mask may serve a hundred layers.
_MAX_TRIED_CALLS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A node whose owner conflicts with other evidence.

    Attributes:
        node: The node.
        supported: The calls with the fewest conflicts as its owner, likeliest first.
        reasons: The conflicts with its owner.
        alternatives: Other nodes of which one may have the wrong owner instead.
    """

    node: int
    supported: tuple[int, ...]
    reasons: tuple[str, ...]
    alternatives: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _BestOwners:
    """The conflicts of a node, how many a better owner resolves, and the calls that resolve that many."""

    conflicts: list[Conflict]
    resolved: int
    supported: tuple[int, ...]

    def suspect(self, node: int) -> Suspect:
        alternatives = {other for conflict in self.conflicts for other in conflict.nodes} - {node}
        reasons = tuple(dict.fromkeys(conflict.reason for conflict in self.conflicts))
        return Suspect(node, self.supported, reasons, tuple(sorted(alternatives)))


def find_suspects(rules: FlowRules, owners: NodeOwners, nodes: Iterable[int]) -> list[Suspect]:
    """The nodes that have a wrong owner.

    A conflict is between two nodes, and one wrong owner conflicts with all its neighbours. The node for which another
    owner resolves most conflicts is reported first; the others are then checked with that owner in place.

    Args:
        rules: The rules.
        owners: The owners.
        nodes: The nodes to check.
    """
    pending: list[tuple[int, int]] = []
    unsearched: list[Suspect] = []
    for node in nodes:
        first = next(rules.conflicts(node, owners), None)
        if first is not None and len(pending) < MAX_SEARCHED:
            heapq.heappush(pending, (-_best_owners(rules, node, owners).resolved, node))
        elif first is not None:
            unsearched.append(Suspect(node, (), (first.reason,)))
    suspects: list[Suspect] = []
    while pending:
        priority, node = heapq.heappop(pending)
        best = _best_owners(rules, node, owners)
        if not best.conflicts:
            continue
        if -best.resolved > priority:
            # The owners replaced since have resolved some of its conflicts.
            heapq.heappush(pending, (-best.resolved, node))
            continue
        suspects.append(best.suspect(node))
        if best.supported:
            owners = owners.with_owner(node, best.supported[0])
    return suspects + unsearched


def _best_owners(rules: FlowRules, node: int, owners: NodeOwners) -> _BestOwners:
    conflicts = list(rules.conflicts(node, owners))
    scores = {
        candidate: sum(1 for _ in rules.conflicts(node, owners.with_owner(node, candidate)))
        for candidate in (_candidates(rules, node, owners) if conflicts else ())
        if candidate != owners.owner(node)
    }
    fewest = min(scores.values(), default=len(conflicts))
    if fewest >= len(conflicts):
        return _BestOwners(conflicts, 0, ())
    supported = tuple(candidate for candidate, score in scores.items() if score == fewest)
    return _BestOwners(conflicts, len(conflicts) - fewest, supported)


def _candidates(rules: FlowRules, node: int, owners: NodeOwners) -> list[int]:
    """The calls that may own a node, likeliest first: those of its neighbours, and their callers."""
    flow = rules.flow
    producers = [flow.producers[tensor] for tensor in flow.node_inputs[node] if flow.producers[tensor] != NO_NODE]
    consumers = [consumer for tensor in flow.node_outputs[node] for consumer in flow.consumers[tensor]]
    found: dict[int, None] = dict.fromkeys(rules.run.candidates(node)) if rules.run is not None else {}
    for tensor in flow.node_outputs[node]:
        found.update(dict.fromkeys(rules.returned_by.get(tensor, ())))
    for neighbour in (*producers, *consumers):
        found.update(dict.fromkeys(owners.calls_of(neighbour)[:_MAX_TRIED_CALLS]))
    for call in list(found):
        found.update(dict.fromkeys(rules.calls.with_callers(call)))
    found[ROOT] = None
    return list(found)
