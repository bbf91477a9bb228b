"""What rounding decides in PyTorch itself is called unstable, by the check of an export and by verify alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.damage import change_weight
from torch import nn

import modelexport
from modelexport.analysis import Verdict
from modelexport.hierarchy import CheckOutcome

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


class Scores(nn.Module):
    """Sums of the same elements, each in another order: equal but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = nn.Linear(64, 1, bias=False)
        nn.init.constant_(self.sum.weight, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.sum(x.roll(i, 1)) for i in range(8)], 1)


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = Scores()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(self.scores(x), 3).indices


class Routed(nn.Module):
    """The chosen rows are far apart, so that another choice is another result."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.Embedding(8, 4)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.experts(self.router(x)), self.head(x)


class Keypoints(nn.Module):
    """How many scores reach the mean is a matter of rounding, and so is the shape of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = Scores()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x)
        return (scores >= scores.mean(1, keepdim=True)).nonzero()


def export(model: nn.Module, path: Path) -> tuple[modelexport.ExportResult, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(6, 64)
    return modelexport.export_model(model, x, path, check="run"), x


@pytest.mark.parametrize("make", [Routed, Keypoints])
def test_what_rounding_decides_is_blamed_on_no_module(make: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    result, x = export(model, tmp_path / "m.onnx")
    assert result.check.outcome is CheckOutcome.UNSTABLE
    report = modelexport.verify_modules(result.onnx_path, model, x)
    assert report.passed, str(report)
    assert report[""].verdict is Verdict.UNSTABLE
    assert "rounded differently" in report[""].explanation
    assert "unstable in PyTorch itself" in str(report)


def test_a_wrong_module_beside_an_unstable_one_is_blamed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Routed().eval()
    result, x = export(model, tmp_path / "m.onnx")
    change_weight(result.onnx_path, tmp_path / "changed.onnx", result.document, "head")
    report = modelexport.verify_modules(tmp_path / "changed.onnx", model, x)
    assert not report.passed
    assert [record.call for record in report.findings if record.verdict is Verdict.INTRODUCED] == ["head"]
