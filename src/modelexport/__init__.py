"""Export PyTorch models to ONNX with every node attributed to the module call it came from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from modelexport._version import __version__

if TYPE_CHECKING:
    from modelexport.carriers import strip_hierarchy
    from modelexport.document import HierarchyDocument, document_schema
    from modelexport.errors import (
        AllStrategiesFailedError,
        ContractError,
        ExportError,
        FileFormatError,
        InputError,
        ModelExportError,
        ModelSourceError,
        StorageError,
        StrategyIncompatibleError,
        UnknownStrategyError,
    )
    from modelexport.export import FXHierarchyExporter, HierarchyExporter, UnifiedExporter, export_model
    from modelexport.loading import LoadedModel, load
    from modelexport.result import ExportResult, ProgressEvent

# Where each public name is defined. They are imported when first used: reading files needs no torch.
_HOMES = {
    "AllStrategiesFailedError": "errors",
    "ContractError": "errors",
    "ExportError": "errors",
    "ExportResult": "result",
    "FXHierarchyExporter": "export",
    "FileFormatError": "errors",
    "HierarchyDocument": "document",
    "HierarchyExporter": "export",
    "InputError": "errors",
    "LoadedModel": "loading",
    "ModelExportError": "errors",
    "ModelSourceError": "errors",
    "ProgressEvent": "result",
    "StorageError": "errors",
    "StrategyIncompatibleError": "errors",
    "UnifiedExporter": "export",
    "UnknownStrategyError": "errors",
    "document_schema": "document",
    "export_model": "export",
    "load": "loading",
    "strip_hierarchy": "carriers",
}

__all__ = [
    "AllStrategiesFailedError",
    "ContractError",
    "ExportError",
    "ExportResult",
    "FXHierarchyExporter",
    "FileFormatError",
    "HierarchyDocument",
    "HierarchyExporter",
    "InputError",
    "LoadedModel",
    "ModelExportError",
    "ModelSourceError",
    "ProgressEvent",
    "StorageError",
    "StrategyIncompatibleError",
    "UnifiedExporter",
    "UnknownStrategyError",
    "__version__",
    "document_schema",
    "export_model",
    "load",
    "strip_hierarchy",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
