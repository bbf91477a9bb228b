"""One module call as an ONNX model of its own."""

from __future__ import annotations

from modelexport.analysis.extraction.call_boundary import ExtractionPlan
from modelexport.analysis.extraction.extractor import (
    Extractor,
    HierarchySource,
    ModelSource,
    ModuleSubgraph,
    extract_module,
    extract_module_subgraph,
)
from modelexport.analysis.extraction.manifest import (
    ExtractedModules,
    SubmodelSummary,
    WrittenSubmodel,
    extraction_schema,
    summarize_submodel,
)
from modelexport.analysis.extraction.port import Port
from modelexport.analysis.extraction.submodel_files import write_submodel
from modelexport.analysis.extraction.submodel_folder import extract_modules

__all__ = [
    "ExtractedModules",
    "ExtractionPlan",
    "Extractor",
    "HierarchySource",
    "ModelSource",
    "ModuleSubgraph",
    "Port",
    "SubmodelSummary",
    "WrittenSubmodel",
    "extract_module",
    "extract_module_subgraph",
    "extract_modules",
    "extraction_schema",
    "summarize_submodel",
    "write_submodel",
]
