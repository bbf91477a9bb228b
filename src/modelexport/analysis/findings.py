"""What validation finds: findings of named rules, and cases of wrong owners. As data, for people and programs alike."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from modelexport.display import Summary, summarized
from modelexport.hierarchy import json_schema


class Severity(StrEnum):
    """How bad a finding is.

    ERROR: the file, or what it says of its hierarchy, is wrong.
    WARNING: it can be used, and something is missing or uncertain.
    NOTE: good to know.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node whose owner the evidence contradicts.

    Attributes:
        node: The node's identity.
        module: The call that owns it.
        tags: The tags it has, the owner's first.
        supported_modules: The calls that the evidence supports, likeliest first; empty where it only contradicts.
        supported_tags: Their tags.
        kind: How the attribution came about, as the document has it.
        confidence: How sure the finding is, from 0 to 1.
        reason: The evidence in words.
    """

    node: str
    module: str
    tags: tuple[str, ...]
    supported_modules: tuple[str, ...]
    supported_tags: tuple[str, ...]
    kind: str
    confidence: float
    reason: str


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing a rule found.

    Attributes:
        rule: The rule's id.
        severity: How bad it is.
        message: What was found.
        fix: What to do about it.
        node: The node it is about, where it is about one.
        case: The attribution in question, for findings of contamination.
    """

    rule: str
    severity: Severity
    message: str
    fix: str
    node: str | None = None
    case: Case | None = None


class RuleReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule's run: how many findings, or why it did not run."""

    id: str
    title: str
    findings: int = 0
    skipped: str = ""


def _summary(report: ValidationReport) -> Summary:
    facts = {
        "file": report.file,
        "nodes": report.nodes,
        "valid": report.is_valid,
        "errors": report.errors,
        "findings": len(report.findings),
    }
    rows = [(f.severity.value, f.rule, f.node or "", f.message) for f in report.findings]
    return Summary(facts, ("severity", "rule", "node", "message"), rows)


@summarized(_summary)
class ValidationReport(msgspec.Struct, frozen=True):
    """The result of `validate`.

    Attributes:
        file: The file.
        nodes: How many nodes it has.
        rules: What was checked.
        findings: What was found, in the order of the rules.
    """

    file: str
    nodes: int
    rules: tuple[RuleReport, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def is_valid(self) -> bool:
        """Whether there is no error."""
        return self.errors == 0

    @property
    def cases(self) -> tuple[Case, ...]:
        """The contaminated nodes."""
        return tuple(finding.case for finding in self.findings if finding.case is not None)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        printed = PrintedValidation(self.file, self.nodes, self.rules, self.findings, self.errors, self.is_valid)
        content: dict[str, Any] = msgspec.to_builtins(printed)
        return content


class PrintedValidation(msgspec.Struct, frozen=True):
    """A report as it is printed: with what follows from it."""

    file: str
    nodes: int
    rules: tuple[RuleReport, ...]
    findings: tuple[Finding, ...]
    errors: int
    valid: bool
    schema_version: int = 1


def validation_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport validate --format json`` prints."""
    return json_schema("modelexport validation", PrintedValidation)
