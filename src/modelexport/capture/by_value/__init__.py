"""Evidence by value: one eager forward pass and one run of an ONNX graph, matched by the values of their tensors."""

from __future__ import annotations

from modelexport.capture.by_value.attribution_by_value import ValueMatch, attribute_by_value
from modelexport.capture.by_value.graph_run import check_onnxruntime
