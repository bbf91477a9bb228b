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
        UnusableOptionError,
    )
    from modelexport.export import (
        FXHierarchyExporter,
        HierarchyExporter,
        HTPHierarchyExporter,
        UnifiedExporter,
        export_model,
    )
    from modelexport.loading import LoadedModel, load
    from modelexport.result import ExportResult, ProgressEvent
    from modelexport.strategies.characteristics import ModelCharacteristics
    from modelexport.strategies.selection import StrategySelector

# Where each public name is defined. They are imported when first used: reading files needs no torch.
_HOMES = {
    "AllStrategiesFailedError": "errors",
    "ContractError": "errors",
    "ExportError": "errors",
    "ExportResult": "result",
    "FXHierarchyExporter": "export",
    "FileFormatError": "errors",
    "HTPHierarchyExporter": "export",
    "HierarchyDocument": "document",
    "HierarchyExporter": "export",
    "InputError": "errors",
    "LoadedModel": "loading",
    "ModelCharacteristics": "strategies.characteristics",
    "ModelExportError": "errors",
    "ModelSourceError": "errors",
    "ProgressEvent": "result",
    "StorageError": "errors",
    "StrategyIncompatibleError": "errors",
    "StrategySelector": "strategies.selection",
    "UnifiedExporter": "export",
    "UnknownStrategyError": "errors",
    "UnusableOptionError": "errors",
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
    "HTPHierarchyExporter",
    "HierarchyDocument",
    "HierarchyExporter",
    "InputError",
    "LoadedModel",
    "ModelCharacteristics",
    "ModelExportError",
    "ModelSourceError",
    "ProgressEvent",
    "StorageError",
    "StrategyIncompatibleError",
    "StrategySelector",
    "UnifiedExporter",
    "UnknownStrategyError",
    "UnusableOptionError",
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
