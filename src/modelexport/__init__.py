"""Export PyTorch models to ONNX with every node attributed to the module call it came from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from modelexport._version import __version__

if TYPE_CHECKING:
    from modelexport.analysis.comparison import Comparison, compare_models
    from modelexport.analysis.extraction import Extractor, ModuleSubgraph, extract_module, extract_module_subgraph
    from modelexport.analysis.findings import Case, Finding, ValidationReport
    from modelexport.analysis.report import AnalysisReport, analyze
    from modelexport.analysis.retagging import RetagReport, retag
    from modelexport.analysis.selection import Selection, select
    from modelexport.analysis.selectors import select_calls, select_nodes
    from modelexport.analysis.validation import validate
    from modelexport.capture.capture import Capture
    from modelexport.carriers import strip_hierarchy
    from modelexport.document import HierarchyDocument, document_schema
    from modelexport.errors import (
        AllStrategiesFailedError,
        ContractError,
        DataDependentError,
        ExportError,
        ExtractionError,
        FileFormatError,
        InputError,
        ModelExportError,
        ModelSourceError,
        OnnxRunError,
        SelectorError,
        SpecializationError,
        StorageError,
        StrategyIncompatibleError,
        UnknownStrategyError,
        UnsupportedLibraryError,
        UnusableOptionError,
    )
    from modelexport.export import (
        FXHierarchyExporter,
        HierarchyExporter,
        HTPHierarchyExporter,
        UnifiedExporter,
        UsageBasedExporter,
        export_model,
    )
    from modelexport.limits import ReadLimits, RunLimits
    from modelexport.loading import LoadedModel, load
    from modelexport.reading import ModelFile, read_model
    from modelexport.result import ExportResult, ProgressEvent
    from modelexport.sources.inputs.synthesis.search import make_example_inputs
    from modelexport.stages import export_stages
    from modelexport.strategies.base import CaptureRequest, Strategy
    from modelexport.strategies.characteristics import ModelCharacteristics
    from modelexport.strategies.fx import FxStrategy
    from modelexport.strategies.htp import HtpStrategy
    from modelexport.strategies.registry import StrategyRegistry, register_strategy
    from modelexport.strategies.selection import StrategySelector
    from modelexport.strategies.usage_based import UsageBasedStrategy
    from modelexport.tagging import tag_file
    from modelexport.verification.modules import verify_modules
    from modelexport.verification.report import CallVerification, VerificationReport

# Where each public name is defined. They are imported when first used: reading files needs no torch.
_HOMES = {
    "AllStrategiesFailedError": "errors",
    "AnalysisReport": "analysis.report",
    "CallVerification": "verification.report",
    "Comparison": "analysis.comparison",
    "Capture": "capture.capture",
    "CaptureRequest": "strategies.base",
    "Case": "analysis.findings",
    "ContractError": "errors",
    "DataDependentError": "errors",
    "ExportError": "errors",
    "ExportResult": "result",
    "ExtractionError": "errors",
    "Extractor": "analysis.extraction",
    "FXHierarchyExporter": "export",
    "FileFormatError": "errors",
    "Finding": "analysis.findings",
    "FxStrategy": "strategies.fx",
    "HTPHierarchyExporter": "export",
    "HierarchyDocument": "document",
    "HierarchyExporter": "export",
    "HtpStrategy": "strategies.htp",
    "InputError": "errors",
    "LoadedModel": "loading",
    "ModelCharacteristics": "strategies.characteristics",
    "ModelExportError": "errors",
    "ModelFile": "reading",
    "ModelSourceError": "errors",
    "ModuleSubgraph": "analysis.extraction",
    "OnnxRunError": "errors",
    "ProgressEvent": "result",
    "ReadLimits": "limits",
    "RunLimits": "limits",
    "RetagReport": "analysis.retagging",
    "Selection": "analysis.selection",
    "SelectorError": "errors",
    "SpecializationError": "errors",
    "StorageError": "errors",
    "Strategy": "strategies.base",
    "StrategyIncompatibleError": "errors",
    "StrategyRegistry": "strategies.registry",
    "StrategySelector": "strategies.selection",
    "UnifiedExporter": "export",
    "UnknownStrategyError": "errors",
    "UnsupportedLibraryError": "errors",
    "UnusableOptionError": "errors",
    "UsageBasedExporter": "export",
    "UsageBasedStrategy": "strategies.usage_based",
    "ValidationReport": "analysis.findings",
    "analyze": "analysis.report",
    "VerificationReport": "verification.report",
    "compare_models": "analysis.comparison",
    "document_schema": "document",
    "export_model": "export",
    "export_stages": "stages",
    "extract_module": "analysis.extraction",
    "extract_module_subgraph": "analysis.extraction",
    "load": "loading",
    "make_example_inputs": "sources.inputs.synthesis.search",
    "read_model": "reading",
    "register_strategy": "strategies.registry",
    "retag": "analysis.retagging",
    "select": "analysis.selection",
    "select_calls": "analysis.selectors",
    "select_nodes": "analysis.selectors",
    "strip_hierarchy": "carriers",
    "tag_file": "tagging",
    "validate": "analysis.validation",
    "verify_modules": "verification.modules",
}

__all__ = [
    "AllStrategiesFailedError",
    "AnalysisReport",
    "CallVerification",
    "Capture",
    "CaptureRequest",
    "Case",
    "Comparison",
    "ContractError",
    "DataDependentError",
    "ExportError",
    "ExportResult",
    "ExtractionError",
    "Extractor",
    "FXHierarchyExporter",
    "FileFormatError",
    "Finding",
    "FxStrategy",
    "HTPHierarchyExporter",
    "HierarchyDocument",
    "HierarchyExporter",
    "HtpStrategy",
    "InputError",
    "LoadedModel",
    "ModelCharacteristics",
    "ModelExportError",
    "ModelFile",
    "ModelSourceError",
    "ModuleSubgraph",
    "OnnxRunError",
    "ProgressEvent",
    "ReadLimits",
    "RetagReport",
    "RunLimits",
    "Selection",
    "SelectorError",
    "SpecializationError",
    "StorageError",
    "Strategy",
    "StrategyIncompatibleError",
    "StrategyRegistry",
    "StrategySelector",
    "UnifiedExporter",
    "UnknownStrategyError",
    "UnsupportedLibraryError",
    "UnusableOptionError",
    "UsageBasedExporter",
    "UsageBasedStrategy",
    "ValidationReport",
    "VerificationReport",
    "__version__",
    "analyze",
    "compare_models",
    "document_schema",
    "export_model",
    "export_stages",
    "extract_module",
    "extract_module_subgraph",
    "load",
    "make_example_inputs",
    "read_model",
    "register_strategy",
    "retag",
    "select",
    "select_calls",
    "select_nodes",
    "strip_hierarchy",
    "tag_file",
    "validate",
    "verify_modules",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
