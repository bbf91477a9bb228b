"""Load models: one loader for each kind of MODEL reference."""

from __future__ import annotations

from modelexport.sources.loaders.model_reference import load_model
from modelexport.sources.loaders.sourced_model import LoadOptions, SourcedModel

__all__ = [
    "LoadOptions",
    "SourcedModel",
    "load_model",
]
