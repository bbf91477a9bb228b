"""Choose the example inputs of a model: given, from its source, or synthesized."""

from __future__ import annotations

from modelexport.sources.inputs.choose import choose_inputs

__all__ = ["choose_inputs"]
