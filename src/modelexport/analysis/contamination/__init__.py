"""Nodes owned by a module call that did not run them, found from the file alone."""

from __future__ import annotations

from modelexport.analysis.contamination.call_index import (
    ROOT,
    BoundaryTensors,
    CallIndex,
    Conflict,
    NodeOwners,
    modules_by_weight,
    types_compatible,
)
from modelexport.analysis.contamination.flow_rules import FlowRules
from modelexport.analysis.contamination.owner_check import FIX, RULE, OwnerCheck

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
