"""Right owners that boundaries seem to contradict are not reported: what passes between calls in other ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import modelexport
from modelexport.analysis import Severity
from modelexport.analysis.validation import validate
from modelexport.verification import validate_owners_by_value

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


class Depthwise(nn.Module):
    """Takes tokens, convolves them as an image, and returns tokens: a transpose and a reshape at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.transpose(1, 2).view(x.shape[0], 8, 4, 4)
        return self.conv(image).flatten(2).transpose(1, 2)


class Windows(nn.Module):
    """Cuts an image into windows, and puts the windows together again: a permutation at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = x.view(-1, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 8)
        return self.linear(windows).view(-1, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 8)


class TransposesLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).transpose(1, 2)


class TransposesFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.transpose(1, 2))


class TimeBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.SiLU()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.act(time))


class ManyTimeBlocks(nn.Module):
    """Each block computes the same activation of the time: the exporter keeps one node for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(TimeBlock() for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time = self.time(x)
        for block in self.blocks:
            x = block(x, time)
        return x


class Size(nn.Module):
    def forward(self, x: torch.Tensor) -> float:
        return x.shape[1] / 2


class Scale(nn.Module):
    def forward(self, x: torch.Tensor, factor: float, end: int) -> torch.Tensor:
        return (x * factor)[:, :end]


class PassesNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = Size()
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x, self.size(x) + 1, x.shape[1] * 2 - 3)


class Adapter(nn.Module):
    """Adds nothing: its factor is the quotient of two equal norms, minus 1, as in a new DoRA adapter.

    onnxruntime computes the norm in another order, and the factor is not exactly 0 there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.magnitude = nn.Parameter(torch.linalg.norm(self.base.weight.detach(), dim=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        factor = self.magnitude / torch.linalg.norm(self.base.weight, dim=1)
        return y + (factor - 1) * y


class Adapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Adapter(), Adapter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        cache.append(self.linear(x))
        return x + 1


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        return self.linear(x) + cache.pop()


class Cached(nn.Module):
    """A tensor passes between modules in a list that the caller gives to both."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps, self.looks = Keeps(), Looks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache: list[torch.Tensor] = []
        return self.looks(self.keeps(x, cache), cache)


CASES: list[tuple[Callable[[], nn.Module], str, dict[str, Any]]] = [
    (lambda: nn.Sequential(Depthwise(), Depthwise()), "htp", {}),
    (lambda: nn.Sequential(Windows(), Windows()), "fx", {}),
    (lambda: nn.Sequential(TransposesLast(), TransposesFirst()), "htp", {}),
    (ManyTimeBlocks, "htp", {}),
    (PassesNumbers, "fx", {"dynamic": {"x": {0: "batch", 1: "length"}}}),
    (Adapters, "fx", {}),
]


@pytest.mark.parametrize(
    ("build", "strategy", "options"),
    CASES,
    ids=["cancelled reshape", "cancelled permutation", "cancelled transpose", "merged from 12", "numbers", "factor 1"],
)
def test_right_owner_is_not_reported(
    build: Callable[[], nn.Module], strategy: str, options: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, example = build().eval(), torch.randn(2, 16, 8)
    path = tmp_path / "m.onnx"
    modelexport.export_model(model, example, path, strategy=strategy, **options)
    assert validate(path, check_contamination=True).findings == ()
    assert validate_owners_by_value(path, model, example).findings == ()


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_tensor_passed_in_a_cache_is_a_warning_and_none_with_the_model(strategy: str, tmp_path: Path) -> None:
    model, example = Cached().eval(), torch.randn(2, 8)
    path = tmp_path / "m.onnx"
    modelexport.export_model(model, example, path, strategy=strategy)
    report = validate(path, check_contamination=True)
    assert {finding.severity for finding in report.findings} == {Severity.WARNING}
    assert report.is_valid
    assert validate_owners_by_value(path, model, example).findings == ()
