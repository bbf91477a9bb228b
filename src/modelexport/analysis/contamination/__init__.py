"""Nodes owned by a module call that did not run them, found from the file alone."""

from __future__ import annotations

from modelexport.analysis.contamination.call_index import ROOT, CallIndex, Side, may_be
from modelexport.analysis.contamination.check import RULE, Evidence, contamination_findings
from modelexport.analysis.contamination.claimed_owners import Claims, Contradiction
from modelexport.analysis.contamination.flow_rules import FlowJudge
from modelexport.analysis.contamination.weight_owners import weight_holders

__all__ = [
    "ROOT",
    "RULE",
    "CallIndex",
    "Claims",
    "Contradiction",
    "Evidence",
    "FlowJudge",
    "Side",
    "contamination_findings",
    "may_be",
    "weight_holders",
]
