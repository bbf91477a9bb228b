"""What a validation rule is: a name, a requirement, and a function that finds the violations in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from modelexport.analysis import Case, Severity
from modelexport.analysis.validation.validated_file import ValidatedFile

EXPORT_AGAIN = "export the model again"
REPAIR = "modelexport repair FILE --force restores missing stores from the others"


@dataclasses.dataclass(frozen=True)
class Violation:
    """A violation of a rule.

    Attributes:
        message: The problem.
        node: The id of the node, if it is about one.
        severity: The severity, if it is not that of the rule.
        case: The wrong owner, for contamination.
    """

    message: str
    node: str | None = None
    severity: Severity | None = None
    case: Case | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """A validation rule.

    Attributes:
        id: Its name in reports.
        title: The requirement.
        fix: What to do about a violation.
        check: Finds the violations.
        severity: The severity of a violation.
        needs_document: Whether it is skipped without a readable sidecar.
        optional: Whether it runs only on request.
        lists_all: Whether the report lists all violations, however many.
    """

    id: str
    title: str
    fix: str
    check: Callable[[ValidatedFile], Iterable[Violation]]
    severity: Severity = Severity.ERROR
    needs_document: bool = False
    optional: bool = False
    lists_all: bool = False
