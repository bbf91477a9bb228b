"""One module call as an ONNX model of its own."""

from __future__ import annotations

from modelexport.analysis.extraction.call_boundary import ExtractionPlan
from modelexport.analysis.extraction.extractor import Extractor, HierarchySource, ModelSource
from modelexport.analysis.extraction.submodel_document import Port
from modelexport.analysis.extraction.submodel_files import (
    SubmodelSummary,
    WrittenSubmodel,
    extract_modules,
    extraction_schema,
    summarize_submodel,
    write_submodel,
)

__all__ = [
    "ExtractionPlan",
    "Extractor",
    "HierarchySource",
    "ModelSource",
    "Port",
    "SubmodelSummary",
    "WrittenSubmodel",
    "extract_modules",
    "extraction_schema",
    "summarize_submodel",
    "write_submodel",
]
