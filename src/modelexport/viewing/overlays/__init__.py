"""Values over module calls and nodes: from the file itself, and from reports about it."""

from __future__ import annotations

from modelexport.viewing.overlays.file_overlays import (
    confidence_overlay,
    flops_overlay,
    kind_overlay,
    precision_overlay,
)
from modelexport.viewing.overlays.report_overlays import comparison_overlay, profile_overlays, verification_overlays

__all__ = [
    "comparison_overlay",
    "confidence_overlay",
    "flops_overlay",
    "kind_overlay",
    "precision_overlay",
    "profile_overlays",
    "verification_overlays",
]
