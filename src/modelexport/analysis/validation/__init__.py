"""Check a file and its hierarchy against validation rules."""

from __future__ import annotations

from modelexport.analysis.validation.sarif import as_sarif
from modelexport.analysis.validation.store_repair import RepairReport, repair, repair_schema
from modelexport.analysis.validation.validated_file import ValidatedFile
from modelexport.analysis.validation.validator import validate, validate_opened

__all__ = [
    "RepairReport",
    "ValidatedFile",
    "as_sarif",
    "repair",
    "repair_schema",
    "validate",
    "validate_opened",
]
