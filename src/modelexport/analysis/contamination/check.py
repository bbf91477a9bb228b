"""The contaminated nodes of a file as cases: what each has, what the evidence supports, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx

from modelexport.analysis import Case, Finding, Severity
from modelexport.analysis.contamination.call_index import CallIndex
from modelexport.analysis.contamination.claimed_owners import Claims, Suspicion
from modelexport.analysis.contamination.flow_rules import FlowJudge
from modelexport.graph import FlowGraph, InferredTypes, read_flow
from modelexport.hierarchy import HierarchyDocument, NodeRecord

RULE = "contamination"

# How sure a case is. An owner that nothing contradicts exists, and no other node explains the contradiction as well;
# one of two neighbours is wrong; something contradicts, and nothing is better.
_CERTAIN = 0.95
_ONE_OF_SEVERAL = 0.8
_NOTHING_BETTER = 0.5
# An attribution that is no surer than this does not claim much; that it is contradicted is worth a warning.
_UNSURE = 0.5
_SHOWN = 5
_FIX = (
    "look at the node with its neighbours; where the owner is wrong, export the model again, "
    "or correct the attribution in all three stores"
)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What a file and its document say, prepared to judge owners by."""

    document: HierarchyDocument
    flow: FlowGraph
    calls: CallIndex
    judge: FlowJudge

    @classmethod
    def gather(
        cls, model: onnx.ModelProto, document: HierarchyDocument, inferred: InferredTypes | None = None
    ) -> Evidence:
        """From a model, whose weights need not be loaded, and the document that belongs to it.

        Args:
            model: The model.
            document: Its document.
            inferred: Where types come from that the file does not have; None does without them.
        """
        flow = read_flow(model, inferred)
        calls = CallIndex(document, flow)
        return cls(document, flow, calls, FlowJudge(flow, calls, document.modules))

    def suspects_when_moved(self, node: str, owner: str, claims: Claims) -> set[str]:
        """Which nodes would be doubted if this one had another owner, in a file where none is doubted now."""
        number = self.flow.ids.index(node)
        moved = claims.with_owner(number, self.calls.numbers[owner])
        among = self.judge.affected_by([number], claims) | self.judge.affected_by([number], moved)
        return {self.flow.ids[suspicion.node] for suspicion in self.judge.judge(moved, among)}

    def suspicions(self, claims: Claims | None = None) -> list[Suspicion]:
        """The nodes whose owner the file contradicts; by default with the owners that the document claims."""
        return self.judge.judge(claims if claims is not None else Claims(self.document, self.flow, self.calls))


def contamination_findings(evidence: Evidence, suspicions: Iterable[Suspicion]) -> list[Finding]:
    """A finding with a case for each suspicion."""
    records = {record.id: record for record in evidence.document.nodes}
    tags = {call.id: call.tag for call in evidence.document.calls}
    found = []
    for suspicion in suspicions:
        record = records.get(evidence.flow.ids[suspicion.node])
        if record is not None:
            found.append(_finding(suspicion, record, tags, evidence))
    return found


def _finding(suspicion: Suspicion, record: NodeRecord, tags: dict[str, str], evidence: Evidence) -> Finding:
    supported = tuple(evidence.calls.ids[call] for call in suspicion.supported[:_SHOWN])
    reasons = [*suspicion.reasons]
    if suspicion.rivals:
        others = ", ".join(repr(evidence.flow.ids[node]) for node in suspicion.rivals[:_SHOWN])
        reasons.append(f"if this owner is right, that of {others} is not")
    case = Case(
        node=record.id,
        module=record.module,
        tags=tuple(dict.fromkeys((record.tag, *(tags.get(call, "") for call in record.contributors)))),
        supported_modules=supported,
        supported_tags=tuple(dict.fromkeys(tags.get(call, "") for call in supported)),
        kind=record.kind,
        confidence=_confidence(suspicion),
        reason="; ".join(reasons),
    )
    better = " or ".join(call or "(root)" for call in supported) or "another call"
    return Finding(
        rule=RULE,
        severity=Severity.WARNING if record.confidence <= _UNSURE else Severity.ERROR,
        message=f"the owner is {record.module or '(root)'}, and the evidence supports {better}: {case.reason}",
        fix=_FIX,
        node=record.id,
        case=case,
    )


def _confidence(suspicion: Suspicion) -> float:
    if not suspicion.supported:
        return _NOTHING_BETTER
    return _ONE_OF_SEVERAL if len(suspicion.reasons) == 1 and suspicion.rivals else _CERTAIN
