"""The check for contamination: which owners conflict with the file, as findings of validation."""

from __future__ import annotations

import dataclasses

import onnx

from modelexport.analysis import Case, Finding, Severity
from modelexport.analysis.contamination.call_index import CallIndex
from modelexport.analysis.contamination.flow_rules import FlowRules
from modelexport.analysis.contamination.node_owners import NodeOwners
from modelexport.analysis.contamination.suspects import Suspect, find_suspects
from modelexport.graph import FlowGraph, InferredTypes, read_flow_graph
from modelexport.hierarchy import HierarchyDocument, NodeRecord

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
        """Check owners by the file alone.

        Args:
            model: The model; its weights need not be loaded.
            document: Its document.
            inferred: Returns types from shape inference, for tensors whose type is not in the file; None uses only
                the types in the file.
        """
        flow = read_flow_graph(model, inferred)
        calls = CallIndex(document, flow)
        return cls(document, flow, calls, FlowRules(flow, calls, document.modules))

    def suspects(self, document: HierarchyDocument | None = None) -> list[Suspect]:
        """The nodes whose owner conflicts with other evidence.

        Args:
            document: A document of the same graph with other owners; None for the file's own.
        """
        owners = NodeOwners(document or self.document, self.flow, self.calls)
        return find_suspects(self.rules, owners, range(len(self.flow.node_ids)))

    def findings(self) -> list[Finding]:
        """A finding with a case for each suspect."""
        records = {record.id: record for record in self.document.nodes}
        tags = {call.id: call.tag for call in self.document.calls}
        found = []
        for suspect in self.suspects():
            record = records.get(self.flow.node_ids[suspect.node])
            if record is not None:
                found.append(self._finding(suspect, record, tags))
        return found

    def _finding(self, suspect: Suspect, record: NodeRecord, tags: dict[str, str]) -> Finding:
        supported = tuple(self.calls.ids[call] for call in suspect.supported[:_SHOWN])
        reasons = [*suspect.reasons]
        if suspect.alternatives:
            others = ", ".join(repr(self.flow.node_ids[node]) for node in suspect.alternatives[:_SHOWN])
            passed = "" if supported else ", or the tensor passes between them in an attribute or a cache"
            reasons.append(f"if this owner is right, the owner of {others} is wrong{passed}")
        case = Case(
            node=record.id,
            module=record.module,
            tags=tuple(dict.fromkeys((record.tag, *(tags.get(call, "") for call in record.contributors)))),
            supported_modules=supported,
            supported_tags=tuple(dict.fromkeys(tags.get(call, "") for call in supported)),
            kind=record.kind,
            confidence=_confidence(suspect),
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


def _confidence(suspect: Suspect) -> float:
    if not suspect.supported:
        return _NO_BETTER_OWNER
    return _ONE_OF_SEVERAL if len(suspect.reasons) == 1 and suspect.alternatives else _CERTAIN
