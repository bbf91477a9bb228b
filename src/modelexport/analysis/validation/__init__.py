"""A file and its hierarchy checked against a table of rules."""

from __future__ import annotations

from modelexport.analysis.validation.sarif import as_sarif
from modelexport.analysis.validation.store_repair import RepairReport, repair, repair_schema
from modelexport.analysis.validation.subject import Subject
from modelexport.analysis.validation.validator import validate, validate_subject

__all__ = [
    "RepairReport",
    "Subject",
    "as_sarif",
    "repair",
    "repair_schema",
    "validate",
    "validate_subject",
]
