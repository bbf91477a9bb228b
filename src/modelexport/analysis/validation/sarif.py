"""A validation report as SARIF 2.1.0, the format of code hosts and editors for findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from modelexport._version import __version__
from modelexport.analysis import Finding, Severity, ValidationReport

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def as_sarif(report: ValidationReport) -> dict[str, Any]:
    """The report as a SARIF log with one run."""
    numbers = {rule.id: number for number, rule in enumerate(report.rules)}
    fixes = {finding.rule: finding.fix for finding in report.findings}
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            **({"help": {"text": fixes[rule.id]}} if rule.id in fixes else {}),
        }
        for rule in report.rules
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "modelexport", "version": __version__, "rules": rules}},
                "results": [_result(finding, numbers, report.file) for finding in report.findings],
            }
        ],
    }


def _result(finding: Finding, numbers: dict[str, int], file: str) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": Path(file).as_uri()}}}
    if finding.node is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.node, "kind": "element"}]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [location],
    }
    if finding.rule in numbers:
        result["ruleIndex"] = numbers[finding.rule]
    if finding.case is not None:
        result["properties"] = {"case": msgspec.to_builtins(finding.case)}
    return result
