"""Export a model, tag a finished ONNX file, export the stages of a generating model."""

from __future__ import annotations

from modelexport.exporting.export import export_model
from modelexport.exporting.exporters import (
    FXHierarchyExporter,
    HierarchyExporter,
    HTPHierarchyExporter,
    UnifiedExporter,
    UsageBasedExporter,
)
from modelexport.exporting.file_tagging import tag_file
from modelexport.exporting.generation_stages import export_stages
from modelexport.exporting.result import ExportResult, ProgressEvent, export_schema, stages_as_dict, tagging_schema

__all__ = [
    "ExportResult",
    "FXHierarchyExporter",
    "HTPHierarchyExporter",
    "HierarchyExporter",
    "ProgressEvent",
    "UnifiedExporter",
    "UsageBasedExporter",
    "export_model",
    "export_schema",
    "export_stages",
    "stages_as_dict",
    "tag_file",
    "tagging_schema",
]
