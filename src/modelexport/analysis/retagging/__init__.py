"""Transfer the hierarchy of a tagged file to a rewritten file."""

from __future__ import annotations

from modelexport.analysis.retagging.retagger import RetagReport, project_owners, retag, retagging_schema
from modelexport.analysis.retagging.synthetic_feeds import feeds_of_model, fill_shapes

__all__ = [
    "RetagReport",
    "feeds_of_model",
    "fill_shapes",
    "project_owners",
    "retag",
    "retagging_schema",
]
