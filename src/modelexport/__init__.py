"""Export PyTorch models to ONNX with every node attributed to the module call it came from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from modelexport._version import __version__ as __version__

# For type checkers, which cannot read the table below.
if TYPE_CHECKING:
    from modelexport.analysis.comparison import Comparison as Comparison
    from modelexport.analysis.comparison import compare_models as compare_models
    from modelexport.analysis.extraction import Extractor as Extractor
    from modelexport.analysis.extraction import ModuleSubgraph as ModuleSubgraph
    from modelexport.analysis.extraction import extract_module as extract_module
    from modelexport.analysis.extraction import extract_module_subgraph as extract_module_subgraph
    from modelexport.analysis.findings import Case as Case
    from modelexport.analysis.findings import Finding as Finding
    from modelexport.analysis.findings import ValidationReport as ValidationReport
    from modelexport.analysis.repairing import RepairReport as RepairReport
    from modelexport.analysis.repairing import repair as repair
    from modelexport.analysis.report import AnalysisReport as AnalysisReport
    from modelexport.analysis.report import analyze as analyze
    from modelexport.analysis.retagging import RetagReport as RetagReport
    from modelexport.analysis.retagging import retag as retag
    from modelexport.analysis.selection import Selection as Selection
    from modelexport.analysis.selection import select as select
    from modelexport.analysis.selectors import select_calls as select_calls
    from modelexport.analysis.selectors import select_nodes as select_nodes
    from modelexport.analysis.submodel_description import ExtractedModules as ExtractedModules
    from modelexport.analysis.submodel_folder import extract_modules as extract_modules
    from modelexport.analysis.validation import validate as validate
    from modelexport.capture.capture import Capture as Capture
    from modelexport.carriers import strip_hierarchy as strip_hierarchy
    from modelexport.document import HierarchyDocument as HierarchyDocument
    from modelexport.document import document_schema as document_schema
    from modelexport.errors import AllStrategiesFailedError as AllStrategiesFailedError
    from modelexport.errors import ContractError as ContractError
    from modelexport.errors import DataDependentError as DataDependentError
    from modelexport.errors import ExportError as ExportError
    from modelexport.errors import ExtractionError as ExtractionError
    from modelexport.errors import FileFormatError as FileFormatError
    from modelexport.errors import InputError as InputError
    from modelexport.errors import ModelExportError as ModelExportError
    from modelexport.errors import ModelSourceError as ModelSourceError
    from modelexport.errors import OnnxRunError as OnnxRunError
    from modelexport.errors import SelectorError as SelectorError
    from modelexport.errors import SpecializationError as SpecializationError
    from modelexport.errors import StorageError as StorageError
    from modelexport.errors import StrategyIncompatibleError as StrategyIncompatibleError
    from modelexport.errors import UnknownStrategyError as UnknownStrategyError
    from modelexport.errors import UnsupportedLibraryError as UnsupportedLibraryError
    from modelexport.errors import UnusableOptionError as UnusableOptionError
    from modelexport.export import FXHierarchyExporter as FXHierarchyExporter
    from modelexport.export import HierarchyExporter as HierarchyExporter
    from modelexport.export import HTPHierarchyExporter as HTPHierarchyExporter
    from modelexport.export import UnifiedExporter as UnifiedExporter
    from modelexport.export import UsageBasedExporter as UsageBasedExporter
    from modelexport.export import export_model as export_model
    from modelexport.limits import ReadLimits as ReadLimits
    from modelexport.limits import RunLimits as RunLimits
    from modelexport.loading import LoadedModel as LoadedModel
    from modelexport.loading import load as load
    from modelexport.reading import ModelFile as ModelFile
    from modelexport.reading import read_model as read_model
    from modelexport.result import ExportResult as ExportResult
    from modelexport.result import ProgressEvent as ProgressEvent
    from modelexport.sources.inputs.choose import ChosenInputs as ChosenInputs
    from modelexport.sources.inputs.choose import choose_inputs as choose_inputs
    from modelexport.sources.inputs.synthesis.search import make_example_inputs as make_example_inputs
    from modelexport.sources.model_source import load_model as load_model
    from modelexport.sources.sourced_model import LoadOptions as LoadOptions
    from modelexport.sources.sourced_model import SourcedModel as SourcedModel
    from modelexport.stages import export_stages as export_stages
    from modelexport.strategies.base import CaptureRequest as CaptureRequest
    from modelexport.strategies.base import Strategy as Strategy
    from modelexport.strategies.characteristics import ModelCharacteristics as ModelCharacteristics
    from modelexport.strategies.fx import FxStrategy as FxStrategy
    from modelexport.strategies.htp import HtpStrategy as HtpStrategy
    from modelexport.strategies.registry import StrategyRegistry as StrategyRegistry
    from modelexport.strategies.registry import register_strategy as register_strategy
    from modelexport.strategies.selection import StrategySelector as StrategySelector
    from modelexport.strategies.usage_based import UsageBasedStrategy as UsageBasedStrategy
    from modelexport.tagging import tag_file as tag_file
    from modelexport.verification.modules import verify_modules as verify_modules
    from modelexport.verification.report import CallVerification as CallVerification
    from modelexport.verification.report import VerificationReport as VerificationReport

# The module that defines each public name. It is imported when the name is first used: reading files needs no torch.
_HOMES = {
    "AllStrategiesFailedError": "errors",
    "AnalysisReport": "analysis.report",
    "CallVerification": "verification.report",
    "Capture": "capture.capture",
    "CaptureRequest": "strategies.base",
    "Case": "analysis.findings",
    "ChosenInputs": "sources.inputs.choose",
    "Comparison": "analysis.comparison",
    "ContractError": "errors",
    "DataDependentError": "errors",
    "ExportError": "errors",
    "ExportResult": "result",
    "ExtractedModules": "analysis.submodel_description",
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
    "LoadOptions": "sources.sourced_model",
    "LoadedModel": "loading",
    "ModelCharacteristics": "strategies.characteristics",
    "ModelExportError": "errors",
    "ModelFile": "reading",
    "ModelSourceError": "errors",
    "ModuleSubgraph": "analysis.extraction",
    "OnnxRunError": "errors",
    "ProgressEvent": "result",
    "ReadLimits": "limits",
    "RepairReport": "analysis.repairing",
    "RetagReport": "analysis.retagging",
    "RunLimits": "limits",
    "Selection": "analysis.selection",
    "SelectorError": "errors",
    "SpecializationError": "errors",
    "SourcedModel": "sources.sourced_model",
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
    "VerificationReport": "verification.report",
    "analyze": "analysis.report",
    "choose_inputs": "sources.inputs.choose",
    "compare_models": "analysis.comparison",
    "document_schema": "document",
    "export_model": "export",
    "export_stages": "stages",
    "extract_module": "analysis.extraction",
    "extract_module_subgraph": "analysis.extraction",
    "extract_modules": "analysis.submodel_folder",
    "load": "loading",
    "load_model": "sources.model_source",
    "make_example_inputs": "sources.inputs.synthesis.search",
    "read_model": "reading",
    "register_strategy": "strategies.registry",
    "repair": "analysis.repairing",
    "retag": "analysis.retagging",
    "select": "analysis.selection",
    "select_calls": "analysis.selectors",
    "select_nodes": "analysis.selectors",
    "strip_hierarchy": "carriers",
    "tag_file": "tagging",
    "validate": "analysis.validation",
    "verify_modules": "verification.modules",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
