"""Export PyTorch models to ONNX with every node attributed to the module call it came from."""

from __future__ import annotations

from modelexport._version import __version__ as __version__

# Not from typing, and nothing else is imported: Ctrl-C is a traceback until the command line has begun.
TYPE_CHECKING = False
# For type checkers, which cannot read the table below.
if TYPE_CHECKING:
    from typing import Any

    from modelexport.analysis.comparison.comparison_report import Comparison as Comparison
    from modelexport.analysis.comparison.model_comparison import compare_models as compare_models
    from modelexport.analysis.extraction.extractor import Extractor as Extractor
    from modelexport.analysis.extraction.extractor import ModuleSubgraph as ModuleSubgraph
    from modelexport.analysis.extraction.extractor import extract_module as extract_module
    from modelexport.analysis.extraction.extractor import extract_module_subgraph as extract_module_subgraph
    from modelexport.analysis.extraction.submodel_files import ExtractedModules as ExtractedModules
    from modelexport.analysis.extraction.submodel_files import extract_modules as extract_modules
    from modelexport.analysis.findings import Case as Case
    from modelexport.analysis.findings import Finding as Finding
    from modelexport.analysis.findings import ValidationReport as ValidationReport
    from modelexport.analysis.query.analysis_report import AnalysisReport as AnalysisReport
    from modelexport.analysis.query.analysis_report import analyze as analyze
    from modelexport.analysis.query.node_selection import Selection as Selection
    from modelexport.analysis.query.node_selection import select as select
    from modelexport.analysis.query.selector_eval import select_calls as select_calls
    from modelexport.analysis.query.selector_eval import select_nodes as select_nodes
    from modelexport.analysis.retagging.retagger import RetagReport as RetagReport
    from modelexport.analysis.retagging.retagger import retag as retag
    from modelexport.analysis.validation.store_repair import RepairReport as RepairReport
    from modelexport.analysis.validation.store_repair import repair as repair
    from modelexport.analysis.validation.validator import validate as validate
    from modelexport.analysis.verification_report import CallVerification as CallVerification
    from modelexport.analysis.verification_report import VerificationReport as VerificationReport
    from modelexport.analysis.verification_report import read_verification as read_verification
    from modelexport.batching.coordinator import BatchProgress as BatchProgress
    from modelexport.batching.coordinator import JobReport as JobReport
    from modelexport.batching.jobs import Job as Job
    from modelexport.batching.run_batch import BatchReport as BatchReport
    from modelexport.batching.run_batch import RayOptions as RayOptions
    from modelexport.batching.run_batch import batch as batch
    from modelexport.batching.run_batch import export_batch as export_batch
    from modelexport.capture.capture import Capture as Capture
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
    from modelexport.errors import RunLimitError as RunLimitError
    from modelexport.errors import SelectorError as SelectorError
    from modelexport.errors import SpecializationError as SpecializationError
    from modelexport.errors import StorageError as StorageError
    from modelexport.errors import StrategyIncompatibleError as StrategyIncompatibleError
    from modelexport.errors import UnknownStrategyError as UnknownStrategyError
    from modelexport.errors import UnsupportedLibraryError as UnsupportedLibraryError
    from modelexport.errors import UnusableOptionError as UnusableOptionError
    from modelexport.exporting.export import export_model as export_model
    from modelexport.exporting.exporters import FXHierarchyExporter as FXHierarchyExporter
    from modelexport.exporting.exporters import HierarchyExporter as HierarchyExporter
    from modelexport.exporting.exporters import HTPHierarchyExporter as HTPHierarchyExporter
    from modelexport.exporting.exporters import UnifiedExporter as UnifiedExporter
    from modelexport.exporting.exporters import UsageBasedExporter as UsageBasedExporter
    from modelexport.exporting.file_tagging import tag_file as tag_file
    from modelexport.exporting.generation_stages import export_stages as export_stages
    from modelexport.exporting.result import ExportResult as ExportResult
    from modelexport.exporting.result import ProgressEvent as ProgressEvent
    from modelexport.hierarchy.document import HierarchyDocument as HierarchyDocument
    from modelexport.hierarchy.document_codec import document_schema as document_schema
    from modelexport.job_results.cache_contents import CacheContents as CacheContents
    from modelexport.job_results.cache_contents import cache_information as cache_information
    from modelexport.job_results.cache_contents import prune_cache as prune_cache
    from modelexport.job_results.catalogue import Catalog as Catalog
    from modelexport.job_results.catalogue import read_catalog as read_catalog
    from modelexport.job_results.changes import CatalogChanges as CatalogChanges
    from modelexport.job_results.changes import JobChange as JobChange
    from modelexport.job_results.changes import compare_catalogs as compare_catalogs
    from modelexport.limits import ReadLimits as ReadLimits
    from modelexport.limits import RunLimits as RunLimits
    from modelexport.profiling.comparison import ProfileComparison as ProfileComparison
    from modelexport.profiling.comparison import compare_profiles as compare_profiles
    from modelexport.profiling.imported.importer import import_profile as import_profile
    from modelexport.profiling.profiler import profile as profile
    from modelexport.profiling.profiler import profile_both as profile_both
    from modelexport.profiling.report import ProfileReport as ProfileReport
    from modelexport.profiling.report import read_profile as read_profile
    from modelexport.profiling.static_cost.static_report import StaticReport as StaticReport
    from modelexport.profiling.static_cost.static_report import profile_statically as profile_statically
    from modelexport.sources.inputs.choose import ChosenInputs as ChosenInputs
    from modelexport.sources.inputs.choose import choose_inputs as choose_inputs
    from modelexport.sources.inputs.synthesis.search import make_example_inputs as make_example_inputs
    from modelexport.sources.loaders.model_reference import load_model as load_model
    from modelexport.sources.loaders.sourced_model import LoadOptions as LoadOptions
    from modelexport.sources.loaders.sourced_model import SourcedModel as SourcedModel
    from modelexport.storage.metadata_stores import strip_hierarchy as strip_hierarchy
    from modelexport.storage.opened_file import LoadedModel as LoadedModel
    from modelexport.storage.opened_file import ModelFile as ModelFile
    from modelexport.storage.opened_file import load as load
    from modelexport.storage.opened_file import read_model as read_model
    from modelexport.strategies.base import CaptureRequest as CaptureRequest
    from modelexport.strategies.base import Strategy as Strategy
    from modelexport.strategies.characteristics import ModelCharacteristics as ModelCharacteristics
    from modelexport.strategies.fx import FxStrategy as FxStrategy
    from modelexport.strategies.htp import HtpStrategy as HtpStrategy
    from modelexport.strategies.registry import StrategyRegistry as StrategyRegistry
    from modelexport.strategies.registry import register_strategy as register_strategy
    from modelexport.strategies.selection import StrategySelector as StrategySelector
    from modelexport.strategies.usage_based import UsageBasedStrategy as UsageBasedStrategy
    from modelexport.verification.module_verification import verify_modules as verify_modules
    from modelexport.viewing.file_view import View as View
    from modelexport.viewing.file_view import view as view

# The module that defines each public name. It is imported when the name is first used: reading files needs no torch.
_HOMES = {
    "AllStrategiesFailedError": "errors",
    "AnalysisReport": "analysis.query.analysis_report",
    "BatchProgress": "batching.coordinator",
    "BatchReport": "batching.run_batch",
    "CacheContents": "job_results.cache_contents",
    "CallVerification": "analysis.verification_report",
    "Capture": "capture.capture",
    "CaptureRequest": "strategies.base",
    "Case": "analysis.findings",
    "Catalog": "job_results.catalogue",
    "CatalogChanges": "job_results.changes",
    "ChosenInputs": "sources.inputs.choose",
    "Comparison": "analysis.comparison.comparison_report",
    "ContractError": "errors",
    "DataDependentError": "errors",
    "ExportError": "errors",
    "ExportResult": "exporting.result",
    "ExtractedModules": "analysis.extraction.submodel_files",
    "ExtractionError": "errors",
    "Extractor": "analysis.extraction.extractor",
    "FXHierarchyExporter": "exporting.exporters",
    "FileFormatError": "errors",
    "Finding": "analysis.findings",
    "FxStrategy": "strategies.fx",
    "HTPHierarchyExporter": "exporting.exporters",
    "HierarchyDocument": "hierarchy.document",
    "HierarchyExporter": "exporting.exporters",
    "HtpStrategy": "strategies.htp",
    "InputError": "errors",
    "Job": "batching.jobs",
    "JobChange": "job_results.changes",
    "JobReport": "batching.coordinator",
    "LoadOptions": "sources.loaders.sourced_model",
    "LoadedModel": "storage.opened_file",
    "ModelCharacteristics": "strategies.characteristics",
    "ModelExportError": "errors",
    "ModelFile": "storage.opened_file",
    "ModelSourceError": "errors",
    "ModuleSubgraph": "analysis.extraction.extractor",
    "OnnxRunError": "errors",
    "RunLimitError": "errors",
    "ProfileComparison": "profiling.comparison",
    "ProfileReport": "profiling.report",
    "ProgressEvent": "exporting.result",
    "RayOptions": "batching.run_batch",
    "ReadLimits": "limits",
    "RepairReport": "analysis.validation.store_repair",
    "RetagReport": "analysis.retagging.retagger",
    "RunLimits": "limits",
    "Selection": "analysis.query.node_selection",
    "SelectorError": "errors",
    "SpecializationError": "errors",
    "SourcedModel": "sources.loaders.sourced_model",
    "StaticReport": "profiling.static_cost.static_report",
    "StorageError": "errors",
    "Strategy": "strategies.base",
    "StrategyIncompatibleError": "errors",
    "StrategyRegistry": "strategies.registry",
    "StrategySelector": "strategies.selection",
    "UnifiedExporter": "exporting.exporters",
    "UnknownStrategyError": "errors",
    "UnsupportedLibraryError": "errors",
    "UnusableOptionError": "errors",
    "UsageBasedExporter": "exporting.exporters",
    "UsageBasedStrategy": "strategies.usage_based",
    "ValidationReport": "analysis.findings",
    "View": "viewing.file_view",
    "VerificationReport": "analysis.verification_report",
    "analyze": "analysis.query.analysis_report",
    "batch": "batching.run_batch",
    "cache_information": "job_results.cache_contents",
    "choose_inputs": "sources.inputs.choose",
    "compare_catalogs": "job_results.changes",
    "compare_models": "analysis.comparison.model_comparison",
    "compare_profiles": "profiling.comparison",
    "document_schema": "hierarchy.document_codec",
    "export_batch": "batching.run_batch",
    "export_model": "exporting.export",
    "export_stages": "exporting.generation_stages",
    "extract_module": "analysis.extraction.extractor",
    "extract_module_subgraph": "analysis.extraction.extractor",
    "extract_modules": "analysis.extraction.submodel_files",
    "import_profile": "profiling.imported.importer",
    "load": "storage.opened_file",
    "load_model": "sources.loaders.model_reference",
    "make_example_inputs": "sources.inputs.synthesis.search",
    "profile": "profiling.profiler",
    "profile_both": "profiling.profiler",
    "profile_statically": "profiling.static_cost.static_report",
    "prune_cache": "job_results.cache_contents",
    "read_catalog": "job_results.catalogue",
    "read_model": "storage.opened_file",
    "read_profile": "profiling.report",
    "read_verification": "analysis.verification_report",
    "register_strategy": "strategies.registry",
    "repair": "analysis.validation.store_repair",
    "retag": "analysis.retagging.retagger",
    "select": "analysis.query.node_selection",
    "select_calls": "analysis.query.selector_eval",
    "select_nodes": "analysis.query.selector_eval",
    "strip_hierarchy": "storage.metadata_stores",
    "tag_file": "exporting.file_tagging",
    "validate": "analysis.validation.validator",
    "verify_modules": "verification.module_verification",
    "view": "viewing.file_view",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
