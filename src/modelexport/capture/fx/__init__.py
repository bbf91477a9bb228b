"""Exporters that use `torch.export`: the graph, with the module calls that ran while torch traced."""

from __future__ import annotations

from modelexport.capture.fx.dynamo_exporter import capture_with_dynamo
from modelexport.capture.fx.exported_program import capture_program
from modelexport.capture.fx.stage_decomposition import Stage, decompose
from modelexport.capture.fx.transformers_exporter import capture_with_caches, capture_with_transformers
