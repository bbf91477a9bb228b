"""Nondeterministic outputs are not compared and are not errors; the others are compared."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.damage import change_weight
from torch import nn

import modelexport
from modelexport.analysis import Severity
from modelexport.analysis.verification_report import Verdict
from modelexport.verification.contamination_by_value import validate_owners_by_value

pytestmark = pytest.mark.integration


class Noise(nn.Module):
    """Adds random numbers, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x) + torch.rand_like(x)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.noise = Noise()
        self.more_noise = Noise()
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.more_noise(self.noise(self.first(x))))


@pytest.fixture
def noisy(tmp_path: Path) -> tuple[nn.Module, torch.Tensor, Path]:
    torch.manual_seed(0)
    model, x, path = Noisy().eval(), torch.randn(4, 8), tmp_path / "noisy.onnx"
    modelexport.export_model(model, (x,), path)
    return model, x, path


def test_nondeterministic_outputs_are_not_comparable_and_their_consumers_are_compared(
    noisy: tuple[nn.Module, torch.Tensor, Path],
) -> None:
    model, x, path = noisy
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    report = modelexport.verify_modules(path, model, (x,))
    assert report.passed, str(report)
    for call in ("", "noise", "more_noise"):
        assert (report[call].verdict, report[call].reason) == (Verdict.NOT_COMPARABLE, "random")
    for call in ("first", "noise.scale", "more_noise.scale", "last"):
        assert report[call].verdict is Verdict.WITHIN
    assert "its inputs are nondeterministic" in report["last"].notes[-1]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]  # type: ignore[union-attr]


def test_error_between_nondeterministic_calls_is_found(
    noisy: tuple[nn.Module, torch.Tensor, Path], tmp_path: Path
) -> None:
    model, x, path = noisy
    changed = tmp_path / "changed.onnx"
    change_weight(path, changed, modelexport.load(path).document, "last")
    report = modelexport.verify_modules(changed, model, (x,))
    assert [record.call for record in report.findings] == ["last"]
    assert report["last"].verdict is Verdict.INTRODUCED


def test_owners_of_a_nondeterministic_model_are_not_checked_by_value(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Noise(), nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    modelexport.export_model(model, (x,), tmp_path / "noisy.onnx")
    report = validate_owners_by_value(tmp_path / "noisy.onnx", model, (x,))
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("outputs", Severity.NOTE)]
    assert "changes with the random state" in report.findings[0].message
    assert "values do not tell" in report.rules[-1].skipped
