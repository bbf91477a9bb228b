"""Who owns a node, who contributed to it, and how that is known."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from modelexport.hierarchy.calls import CallId


class Kind(StrEnum):
    """How an attribution came about.

    EXACT: the exporter recorded the call for this very node.
    FUSED: the node does the work of several calls; its owner is the one that made its result.
    MERGED: equal nodes of several calls became this one.
    FOLDED: the node holds what was computed by nodes that are gone.
    INFERRED: nothing was recorded; the owner is reasoned from data flow.
    """

    EXACT = "exact"
    FUSED = "fused"
    MERGED = "merged"
    FOLDED = "folded"
    INFERRED = "inferred"


class Attribution(msgspec.Struct, frozen=True):
    """The owner of a node and the evidence for it.

    Attributes:
        owner: The call the node belongs to, its primary context.
        kind: How that is known.
        confidence: From 0 to 1; docs/attribution.md says what each value stands for.
        reason: The evidence in words.
        contributors: The other calls whose work the node also does.
        context: The calls whose results the node joins, where they are several: a residual add belongs to the call
            that ran it, and joins what others made.
    """

    owner: CallId
    kind: Kind
    confidence: float
    reason: str
    contributors: tuple[CallId, ...] = ()
    context: tuple[CallId, ...] = ()
