"""What can be asked of an exported model: reads the document and the graph, needs no torch."""

from __future__ import annotations

from modelexport.analysis.findings import Case, Finding, RuleReport, Severity, ValidationReport, validation_schema

__all__ = [
    "Case",
    "Finding",
    "RuleReport",
    "Severity",
    "ValidationReport",
    "validation_schema",
]
