"""Exporters that go through `torch.export`: the graph, with module calls seen while torch traces."""

from __future__ import annotations

from modelexport.capture.fx.dynamo import capture_with_dynamo
from modelexport.capture.fx.exported_program import capture_program
from modelexport.capture.fx.program_modules import ExportedProgramModule, model_of_program, refuse_program
from modelexport.capture.fx.stage_decomposition import Stage, decompose
from modelexport.capture.fx.transformers_exporter import (
    can_export,
    capture_with_caches,
    capture_with_transformers,
    is_transformers_model,
)

__all__ = [
    "ExportedProgramModule",
    "Stage",
    "can_export",
    "capture_program",
    "capture_with_caches",
    "capture_with_dynamo",
    "capture_with_transformers",
    "decompose",
    "is_transformers_model",
    "model_of_program",
    "refuse_program",
]
