"""Nodes owned by a module call that did not run them, found from the file alone."""

from __future__ import annotations

from modelexport.analysis.contamination.call_index import ROOT, BoundaryTensors, CallIndex, types_compatible
from modelexport.analysis.contamination.flow_rules import FlowRules
from modelexport.analysis.contamination.node_owners import Conflict, NodeOwners
from modelexport.analysis.contamination.owner_check import FIX, RULE, OwnerCheck
from modelexport.analysis.contamination.weight_modules import modules_by_weight

__all__ = [
    "FIX",
    "ROOT",
    "RULE",
    "BoundaryTensors",
    "CallIndex",
    "Conflict",
    "FlowRules",
    "NodeOwners",
    "OwnerCheck",
    "modules_by_weight",
    "types_compatible",
]
