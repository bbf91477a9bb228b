"""Compare an exported file with PyTorch, independently of the code that attributes nodes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modelexport.verification.file_check import FileChecker
from modelexport.verification.onnx_run import feeds_of_file
from modelexport.verification.probes import ModelInputs

# For type checkers, which cannot read the table below.
if TYPE_CHECKING:
    from modelexport.verification.contamination_by_value import validate_owners_by_value
    from modelexport.verification.module_verification import verify_modules

__all__ = [
    "FileChecker",
    "ModelInputs",
    "feeds_of_file",
    "validate_owners_by_value",
    "verify_modules",
]

# Imported on first use: they need most of `analysis`, and the check of an exported file does not.
_HOMES = {"validate_owners_by_value": "contamination_by_value", "verify_modules": "module_verification"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
