"""Analysis of exported files: reads the document and the graph, without torch."""

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
