"""The cost of a file without running it: FLOPs, parameters, activations and memory traffic by module call."""

from __future__ import annotations

from modelexport.profiling.static_cost.static_report import (
    MOST_EXPANDED_NODES,
    CallCost,
    StaticCost,
    StaticReport,
    StaticRow,
    count_nodes,
    profile_statically,
    static_schema,
)

__all__ = [
    "MOST_EXPANDED_NODES",
    "CallCost",
    "StaticCost",
    "StaticReport",
    "StaticRow",
    "count_nodes",
    "profile_statically",
    "static_schema",
]
