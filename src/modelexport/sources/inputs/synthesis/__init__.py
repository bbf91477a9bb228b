"""Synthesize example inputs for a model that comes without any, by calling it."""

from modelexport.sources.inputs.synthesis.search import complete_inputs, describe, make_example_inputs

__all__ = ["complete_inputs", "describe", "make_example_inputs"]
