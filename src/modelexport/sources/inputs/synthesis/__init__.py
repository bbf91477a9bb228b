"""Synthesize example inputs for a model that comes without any, by calling it."""

from modelexport.sources.inputs.synthesis.search import (
    SynthesizedInputs,
    complete_inputs,
    describe,
    make_example_inputs,
    synthesize_inputs,
)

__all__ = ["SynthesizedInputs", "complete_inputs", "describe", "make_example_inputs", "synthesize_inputs"]
