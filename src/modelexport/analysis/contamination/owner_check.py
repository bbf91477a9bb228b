"""The check for contamination: the nodes whose owner conflicts with other evidence, as findings of validation."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

import onnx

from modelexport.analysis import Case, Finding, Severity
from modelexport.analysis.contamination.call_index import ROOT, CallIndex, Conflict, NodeOwners
from modelexport.analysis.contamination.flow_rules import FlowRules
from modelexport.graph import NO_NODE, FlowGraph, InferredTypes, read_flow_graph
from modelexport.hierarchy import HierarchyDocument, NodeRecord

# With more conflicts than these, the document belongs to another graph. The remaining nodes are reported without a
# search for a better owner, which bounds the time that any file can take.
MAX_SEARCHED = 2000
# Of the calls that share a neighbour, these are tried: a mask may serve a hundred layers.
_MAX_TRIED_CALLS = 8
RULE = "contamination"
# The confidence of a case: an owner without conflicts exists, and no other node explains the conflict as well; the
# owner of one of several neighbours is wrong; no other owner has fewer conflicts.
_CERTAIN = 0.95
_ONE_OF_SEVERAL = 0.8
_NO_BETTER_OWNER = 0.5
# A conflict with an owner of at most this confidence is a warning. So is one that no other owner resolves: either the
# owner is wrong, or a tensor passes from call to call in an attribute or a cache, which no boundary records.
_LOW_CONFIDENCE = 0.5
_SHOWN = 5
FIX = "inspect the node and its neighbors; if the owner is wrong, export again or correct all three stores"


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A node whose owner conflicts with other evidence, for these reasons.

    The supported calls have the fewest conflicts as its owner, likeliest first. One of the alternatives may have the
    wrong owner instead.
    """

    node: int
    supported: tuple[int, ...]
    reasons: tuple[str, ...]
    alternatives: tuple[int, ...] = ()


def find_suspects(rules: FlowRules, owners: NodeOwners, nodes: Iterable[int]) -> list[Suspect]:
    """The nodes that have a wrong owner.

    A conflict is between two nodes, and one wrong owner conflicts with all its neighbours. The node for which another
    owner resolves most conflicts is reported first; the others are then checked with that owner in place.
    """
    pending: list[tuple[int, int]] = []
    unsearched: list[Suspect] = []
    for node in nodes:
        first = next(rules.conflicts(node, owners), None)
        if first is not None and len(pending) < MAX_SEARCHED:
            heapq.heappush(pending, (-_best_owners(rules, node, owners)[1], node))
        elif first is not None:
            unsearched.append(Suspect(node, (), (first.reason,)))
    suspects: list[Suspect] = []
    while pending:
        priority, node = heapq.heappop(pending)
        conflicts, resolved, supported = _best_owners(rules, node, owners)
        if not conflicts:
            continue
        if -resolved > priority:
            # The owners replaced since have resolved some of its conflicts.
            heapq.heappush(pending, (-resolved, node))
            continue
        alternatives = {other for conflict in conflicts for other in conflict.nodes} - {node}
        reasons = tuple(dict.fromkeys(conflict.reason for conflict in conflicts))
        suspects.append(Suspect(node, supported, reasons, tuple(sorted(alternatives))))
        if supported:
            owners = owners.with_owner(node, supported[0])
    return suspects + unsearched


def _best_owners(rules: FlowRules, node: int, owners: NodeOwners) -> tuple[list[Conflict], int, tuple[int, ...]]:
    """The conflicts of a node, how many a better owner resolves, and the calls that resolve that many."""
    conflicts = list(rules.conflicts(node, owners))
    scores = {
        candidate: sum(1 for _ in rules.conflicts(node, owners.with_owner(node, candidate)))
        for candidate in (_candidates(rules, node, owners) if conflicts else ())
        if candidate != owners.owner(node)
    }
    fewest = min(scores.values(), default=len(conflicts))
    if fewest >= len(conflicts):
        return conflicts, 0, ()
    supported = tuple(candidate for candidate, score in scores.items() if score == fewest)
    return conflicts, len(conflicts) - fewest, supported


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


@dataclasses.dataclass(frozen=True)
class OwnerCheck:
    """A file and its document, prepared to check the owners of nodes."""

    document: HierarchyDocument
    flow: FlowGraph
    calls: CallIndex
    rules: FlowRules

    @classmethod
    def from_file(
        cls, model: onnx.ModelProto, document: HierarchyDocument, inferred: InferredTypes | None = None
    ) -> OwnerCheck:
        """Check owners by the file alone; its weights need not be loaded.

        `inferred` returns types from shape inference, for tensors whose type is not in the file.
        """
        flow = read_flow_graph(model, inferred)
        calls = CallIndex(document, flow)
        return cls(document, flow, calls, FlowRules(flow, calls, document.modules))

    def suspects(self, document: HierarchyDocument | None = None) -> list[Suspect]:
        """The nodes whose owner, in this document of the same graph or in the file's own, conflicts with evidence."""
        owners = NodeOwners(document or self.document, self.flow, self.calls)
        return find_suspects(self.rules, owners, range(len(self.flow.node_ids)))

    def findings(self) -> list[Finding]:
        """A finding with a case for each suspect."""
        records = {record.id: record for record in self.document.nodes}
        tags = {call.id: call.tag for call in self.document.calls}
        suspects = ((suspect, records.get(self.flow.node_ids[suspect.node])) for suspect in self.suspects())
        return [self._finding(suspect, record, tags) for suspect, record in suspects if record is not None]

    def _finding(self, suspect: Suspect, record: NodeRecord, tags: dict[str, str]) -> Finding:
        supported = tuple(self.calls.ids[call] for call in suspect.supported[:_SHOWN])
        reasons = [*suspect.reasons]
        if suspect.alternatives:
            others = ", ".join(repr(self.flow.node_ids[node]) for node in suspect.alternatives[:_SHOWN])
            passed = "" if supported else ", or the tensor passes between them in an attribute or a cache"
            reasons.append(f"if this owner is right, the owner of {others} is wrong{passed}")
        confidence = _NO_BETTER_OWNER
        if supported:
            confidence = _ONE_OF_SEVERAL if len(suspect.reasons) == 1 and suspect.alternatives else _CERTAIN
        case = Case(
            node=record.id,
            module=record.module,
            tags=tuple(dict.fromkeys((record.tag, *(tags.get(call, "") for call in record.contributors)))),
            supported_modules=supported,
            supported_tags=tuple(dict.fromkeys(tags.get(call, "") for call in supported)),
            kind=record.kind,
            confidence=confidence,
            reason="; ".join(reasons),
        )
        better = " or ".join(call or "(root)" for call in supported) or "another call"
        return Finding(
            rule=RULE,
            severity=Severity.WARNING if record.confidence <= _LOW_CONFIDENCE or not supported else Severity.ERROR,
            message=f"the owner is {record.module or '(root)'}, and the evidence supports {better}: {case.reason}",
            fix=FIX,
            node=record.id,
            case=case,
        )
