"""The results of validation: findings of rules, and cases of wrong owners."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from modelexport.display import Summary, summarized
from modelexport.hierarchy import json_schema


class Severity(StrEnum):
    """The severity of a finding.

    ERROR: the file or its hierarchy is wrong.
    WARNING: the file is usable, but something is missing or uncertain.
    NOTE: information.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node whose owner the evidence contradicts.

    Attributes:
        node: The id of the node.
        module: The call that owns it.
        tags: Its tags, that of the owner first.
        supported_modules: The calls that the evidence supports, most likely first; empty if it supports none.
        supported_tags: Their tags.
        kind: The kind of attribution in the document.
        confidence: The confidence of the finding, from 0 to 1.
        reason: A description of the evidence.
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
    """A finding of a rule.

    Attributes:
        rule: The rule's id.
        severity: Its severity.
        message: The problem.
        fix: The next step.
        node: The id of the node, if it is about one.
        case: The wrong owner, for contamination.
    """

    rule: str
    severity: Severity
    message: str
    fix: str
    node: str | None = None
    case: Case | None = None


class RuleReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of findings of a rule, or why it was skipped."""

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
        nodes: The number of nodes.
        rules: The checked rules.
        findings: The findings, in the order of the rules.
    """

    file: str
    nodes: int
    rules: tuple[RuleReport, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """The number of errors."""
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
        """The report as JSON."""
        printed = PrintedValidation(**msgspec.structs.asdict(self), errors=self.errors, valid=self.is_valid)
        content: dict[str, Any] = msgspec.to_builtins(printed)
        return content


class PrintedValidation(ValidationReport, frozen=True, kw_only=True):
    """The JSON of a `ValidationReport`, with derived fields."""

    errors: int
    valid: bool
    schema_version: int = 1


def validation_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport validate --format json``."""
    return json_schema("modelexport validation", PrintedValidation)
