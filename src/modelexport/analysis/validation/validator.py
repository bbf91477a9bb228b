"""validate: check a model file and its hierarchy against the validation rules; the report as SARIF."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelexport._version import __version__
from modelexport.analysis import Finding, RuleReport, Severity, ValidationReport
from modelexport.analysis.contamination import RULE as CONTAMINATION
from modelexport.analysis.validation.graph_rules import BASELINE_RULES, GRAPH_RULES, TOPOLOGY
from modelexport.analysis.validation.hierarchy_rules import HIERARCHY_RULES
from modelexport.analysis.validation.rule import REPAIR, TAG, Rule, ValidatedFile, Violation
from modelexport.analysis.validation.store_rules import STORE_RULES
from modelexport.deadline import reads_files
from modelexport.display import counted
from modelexport.gc_pause import gc_paused

RULES: tuple[Rule, ...] = (*GRAPH_RULES, *STORE_RULES, *HIERARCHY_RULES, *BASELINE_RULES)
# A missing store violates a rule at every node: the report lists the first findings and counts the rest.
_MAX_FINDINGS = 20


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
        "level": finding.severity.value,
        "message": {"text": finding.message},
        "locations": [location],
    }
    if finding.rule in numbers:
        result["ruleIndex"] = numbers[finding.rule]
    if finding.case is not None:
        result["properties"] = {"case": msgspec.to_builtins(finding.case)}
    return result


@reads_files()
def validate(
    path: str | Path, *, check_contamination: bool = False, baseline: str | Path | None = None
) -> ValidationReport:
    """Check a model file and its hierarchy.

    Args:
        path: The file.
        check_contamination: Whether to also check the owners of nodes against the evidence in the file.
        baseline: A file that must have the same graph, apart from our metadata.

    Raises:
        InputError: The file does not exist.
        FileFormatError: It is not an ONNX model.
    """
    with gc_paused():
        return validate_opened(ValidatedFile(path, baseline), check_contamination=check_contamination)


def validate_opened(file: ValidatedFile, *, check_contamination: bool = False) -> ValidationReport:
    """`validate` for a file that is already parsed."""
    requested = {CONTAMINATION: check_contamination, TOPOLOGY: file.baseline is not None}
    with gc_paused():
        return check(file, [rule for rule in RULES if not rule.optional or requested[rule.id]])


def check(file: ValidatedFile, chosen: Sequence[Rule]) -> ValidationReport:
    """Check a file against some rules."""
    reports: list[RuleReport] = []
    findings: list[Finding] = []
    for rule in chosen:
        if rule.needs_document and file.document is None:
            reports.append(RuleReport(rule.id, rule.title, skipped="there is no sidecar to check"))
            continue
        found = list(rule.check(file))
        reports.append(RuleReport(rule.id, rule.title, len(found)))
        fix = TAG if rule.fix == REPAIR and not file.has_hierarchy else rule.fix
        findings.extend(_findings(dataclasses.replace(rule, fix=fix), found))
    return ValidationReport(str(file.path), len(file.nodes), tuple(reports), tuple(findings))


def _findings(rule: Rule, violations: Sequence[Violation]) -> Iterable[Finding]:
    shown = violations if rule.lists_all else violations[:_MAX_FINDINGS]
    for found in shown:
        yield Finding(rule.id, found.severity or Severity.ERROR, found.message, rule.fix, found.node, found.case)
    if len(shown) < len(violations):
        left = len(violations) - len(shown)
        yield Finding(rule.id, Severity.NOTE, f"not listed: {counted(left, 'more finding')} of this rule", rule.fix)
