"""validate: a model file and its hierarchy against a table of named rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from modelexport.analysis import Finding, RuleReport, Severity, ValidationReport
from modelexport.analysis.contamination import RULE as CONTAMINATION
from modelexport.analysis.validation import rules
from modelexport.analysis.validation.rules import Breach
from modelexport.analysis.validation.subject import Subject
from modelexport.gc_pause import gc_paused

TOPOLOGY = "topology"
# The rules that ask onnx itself; all others look at the file's structure.
EXTERNAL = frozenset({"onnx-checker", "shape-inference"})

# So many findings of one rule say it: a store that is gone is gone for every node.
_MOST = 20
_EXPORT_AGAIN = "export the model again"
_REPAIR = "modelexport repair FILE --force restores the missing stores from those that are left"


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of the table.

    Attributes:
        id: Its name, for reports and for those who filter them.
        title: What it demands.
        fix: What to do where it is broken.
        check: Finds what breaks it.
        severity: How bad that is, where a finding does not say otherwise.
        needs_document: Whether there is nothing to check without a sidecar that can be read.
        optional: Whether it runs only when asked for.
        whole: Whether every finding is told, however many.
    """

    id: str
    title: str
    fix: str
    check: Callable[[Subject], Iterable[Breach]]
    severity: Severity = Severity.ERROR
    needs_document: bool = False
    optional: bool = False
    whole: bool = False


RULES: tuple[Rule, ...] = (
    Rule("onnx-checker", "the ONNX checker accepts the file", _EXPORT_AGAIN, rules.check_onnx),
    Rule("shape-inference", "shapes and types fit together", _EXPORT_AGAIN, rules.check_shapes),
    Rule("sidecar", "there is a sidecar that can be read", _REPAIR, rules.check_sidecar),
    Rule(
        "sidecar-hash",
        "the sidecar describes this graph",
        "put the sidecar of this file beside it, or carry the hierarchy over with modelexport retag",
        rules.check_belongs,
        needs_document=True,
    ),
    Rule("coverage", "every node has an owner", _REPAIR, rules.check_coverage),
    Rule("tag-format", "tags are written as tags are", _REPAIR, rules.check_tag_format),
    Rule("stores-agree", "the three stores say the same", _REPAIR, rules.check_stores_agree),
    Rule("tags-exist", "every tag is in the tree", _EXPORT_AGAIN, rules.check_tags_exist, needs_document=True),
    Rule("hierarchy", "modules and calls hang together", _EXPORT_AGAIN, rules.check_hierarchy, needs_document=True),
    Rule("boundaries", "boundary tensors are in the graph", _EXPORT_AGAIN, rules.check_boundaries, needs_document=True),
    Rule(
        "tensors",
        "who makes and reads a tensor owns its nodes",
        _EXPORT_AGAIN,
        rules.check_tensors,
        needs_document=True,
    ),
    Rule(
        CONTAMINATION,
        "no node is owned by a call that did not run it",
        "look at the node with its neighbours; where the owner is wrong, export again or correct all three stores",
        rules.check_owners,
        needs_document=True,
        optional=True,
        whole=True,
    ),
    Rule(
        TOPOLOGY,
        "without our metadata, the graph is the baseline's",
        "export both with the same versions and options",
        rules.check_topology,
        optional=True,
    ),
)


def validate(
    path: str | Path, *, check_contamination: bool = False, baseline: str | Path | None = None
) -> ValidationReport:
    """Check a model file and its hierarchy.

    Args:
        path: The file.
        check_contamination: Whether to judge the owners of nodes too, by what the file itself shows.
        baseline: A file that must have the same graph once our metadata is taken away.

    Raises:
        InputError: There is no such file.
        FileFormatError: It is not an ONNX model.
    """
    with gc_paused():
        return validate_subject(Subject(path, baseline), check_contamination=check_contamination)


def validate_subject(subject: Subject, *, check_contamination: bool = False) -> ValidationReport:
    """`validate` for a file that is already parsed."""
    asked = {CONTAMINATION: check_contamination, TOPOLOGY: subject.baseline is not None}
    with gc_paused():
        return check(subject, [rule for rule in RULES if not rule.optional or asked[rule.id]])


def check(subject: Subject, chosen: Sequence[Rule]) -> ValidationReport:
    """The report of these rules on a file."""
    reports: list[RuleReport] = []
    findings: list[Finding] = []
    for rule in chosen:
        if rule.needs_document and subject.document is None:
            reports.append(RuleReport(rule.id, rule.title, skipped="there is no sidecar to check"))
            continue
        found = list(rule.check(subject))
        reports.append(RuleReport(rule.id, rule.title, len(found)))
        findings.extend(_findings(rule, found))
    return ValidationReport(str(subject.path), len(subject.nodes), tuple(reports), tuple(findings))


def _findings(rule: Rule, found: Sequence[Breach]) -> Iterable[Finding]:
    shown = found if rule.whole else found[:_MOST]
    for breach in shown:
        yield Finding(rule.id, breach.severity or rule.severity, breach.message, rule.fix, breach.node, breach.case)
    if len(shown) < len(found):
        left = len(found) - len(shown)
        yield Finding(rule.id, Severity.NOTE, f"{left} more findings of this rule are not listed", rule.fix)
