"""Check a file and its hierarchy against validation rules."""

from __future__ import annotations

from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.analysis.validation.store_repair import repair, repair_schema
from modelexport.analysis.validation.validator import as_sarif, validate, validate_opened

__all__ = [
    "ValidatedFile",
    "as_sarif",
    "repair",
    "repair_schema",
    "validate",
    "validate_opened",
]
