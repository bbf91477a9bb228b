"""The owner of a node, its contributors, and the evidence for them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from modelexport.hierarchy.calls import CallId


class Kind(StrEnum):
    """How an attribution came about.

    EXACT: the exporter recorded the call for this very node.
    FUSED: the node does the work of several calls; its owner is the one that computed its output.
    MERGED: equal nodes of several calls were merged into this one.
    FOLDED: the node is a constant, folded from nodes of the original graph.
    INFERRED: nothing was recorded; the owner was inferred from data flow or values.
    """

    EXACT = "exact"
    FUSED = "fused"
    MERGED = "merged"
    FOLDED = "folded"
    INFERRED = "inferred"


class Attribution(msgspec.Struct, frozen=True):
    """The owner of a node and the evidence for it.

    Attributes:
        owner: The call that the node belongs to.
        kind: How that is known.
        confidence: From 0 to 1; docs/attribution.md explains each value.
        reason: A sentence about the evidence.
        contributors: The other calls whose work the node also does.
        context: The calls whose outputs the node joins, if there are several: a residual add belongs to the call
            that ran it, and joins outputs of others.
    """

    owner: CallId
    kind: Kind
    confidence: float
    reason: str
    contributors: tuple[CallId, ...] = ()
    context: tuple[CallId, ...] = ()
