"""Compare an exported file with PyTorch, independently of the code that attributes nodes."""

from __future__ import annotations

from modelexport.verification.contamination_by_value import validate_owners_by_value
from modelexport.verification.file_check import FileChecker
from modelexport.verification.module_verification import verify_modules
from modelexport.verification.onnx_run import feeds_of_file

__all__ = [
    "FileChecker",
    "feeds_of_file",
    "validate_owners_by_value",
    "verify_modules",
]
