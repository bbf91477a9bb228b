"""Transfer the hierarchy of a tagged file to a rewritten file."""

from __future__ import annotations

from modelexport.analysis.retagging.retagger import RetagReport, retag, retagging_schema
from modelexport.analysis.retagging.synthetic_feeds import fill_shapes

__all__ = [
    "RetagReport",
    "fill_shapes",
    "retag",
    "retagging_schema",
]
