"""Choose the example inputs of a model: given, from its source, or synthesized."""

from __future__ import annotations

from modelexport.sources.inputs.choose import ChosenInputs, choose_inputs
from modelexport.sources.inputs.from_processor import process, samples

__all__ = [
    "ChosenInputs",
    "choose_inputs",
    "process",
    "samples",
]
