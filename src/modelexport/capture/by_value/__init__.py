"""Evidence by value: one eager forward pass, matched to the tensors of an ONNX graph."""

from __future__ import annotations

from modelexport.capture.by_value.attribution_by_value import Usage, attribute_by_usage, check_onnxruntime

__all__ = [
    "Usage",
    "attribute_by_usage",
    "check_onnxruntime",
]
