"""Analysis of exported files: reads the document and the graph, without torch."""

from __future__ import annotations

from modelexport.analysis.findings import Case, Finding, RuleReport, Severity, ValidationReport, validation_schema
from modelexport.analysis.report_files import read_report_file
from modelexport.analysis.verification_report import (
    CallVerification,
    Difference,
    TensorVerification,
    Verdict,
    VerificationReport,
    read_verification,
    verification_schema,
)

__all__ = [
    "CallVerification",
    "Case",
    "Difference",
    "Finding",
    "RuleReport",
    "Severity",
    "TensorVerification",
    "ValidationReport",
    "Verdict",
    "VerificationReport",
    "read_report_file",
    "read_verification",
    "validation_schema",
    "verification_schema",
]
