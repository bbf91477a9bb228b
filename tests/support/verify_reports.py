"""Reports of `verify_modules` on the exports of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import modelexport
from modelexport.analysis.verification_report import Verdict, VerificationReport
from modelexport.hierarchy import HierarchyDocument
from tests.conftest import Exported


def grouped(*values: object) -> object:
    """A parameter set for the worker that exports the model of this name."""
    return pytest.param(*values, marks=pytest.mark.xdist_group(str(values[0])))


def verified(ours: Exported, path: Path | None = None, **options: object) -> VerificationReport:
    """The report on an export, or on another file of the same model."""
    return modelexport.verify_modules(path or ours.path, ours.example.model, ours.example.inputs, **options)  # type: ignore[arg-type]


def callers_of(document: HierarchyDocument, call: str) -> list[str]:
    """The calls that `call` ran inside of."""
    parents = {record.id: record.parent for record in document.calls}
    found = []
    while (parent := parents[call]) is not None:
        found.append(parent)
        call = parent
    return found


def calls_with(report: VerificationReport, *verdicts: Verdict) -> set[str]:
    """The calls with one of these verdicts."""
    return {record.call for record in report.calls if record.verdict in verdicts}
