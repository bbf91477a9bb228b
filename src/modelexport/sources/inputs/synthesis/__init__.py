"""Synthesize example inputs for a model that comes without any, by calling it."""

from __future__ import annotations

from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.search import (
    complete_inputs,
    describe,
    make_example_inputs,
    synthesize_inputs,
)

__all__ = [
    "ModelFacts",
    "complete_inputs",
    "describe",
    "make_example_inputs",
    "synthesize_inputs",
]
