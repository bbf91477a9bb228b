"""Attempts: one list with a time budget, in which every variant of an exporter's call is visible."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.meddlers import WritesThroughData
from torch import nn

import modelexport
from modelexport.attempt_report import Variant
from modelexport.strategies.attempts import Attempts
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.strategies.registry import StrategyRegistry


class Failing(Strategy):
    """Fails after some time, and remembers the requests."""

    name = "failing"

    def __init__(self, seconds: float = 0.0, retries: tuple[Variant, ...] = ()) -> None:
        self.seconds = seconds
        self.retries = list(retries)
        self.requests: list[CaptureRequest] = []

    def exporters(self, model: nn.Module) -> tuple[str, ...]:
        return ("one", "two")

    def capture(self, request: CaptureRequest) -> modelexport.Capture:
        self.requests.append(request)
        time.sleep(self.seconds)
        # As an exporter does that leaves something behind.
        request.model.left_behind = len(self.requests)
        error = modelexport.StrategyIncompatibleError(self.name, f"failure {len(self.requests)}.", "")
        error.retry = self.retries.pop(0) if self.retries else None
        raise error


class Other(Failing):
    name = "other"


def fail(tmp_path: Path, *strategies: Strategy, **options: Any) -> modelexport.ExportError:
    with pytest.raises(modelexport.ExportError) as caught:
        modelexport.export_model(
            nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "m.onnx", registry=StrategyRegistry(strategies), **options
        )
    assert list(tmp_path.iterdir()) == []
    return caught.value


def test_every_variant_is_an_attempt_with_its_time_and_reason(tmp_path: Path) -> None:
    retries = (Variant(unwatched=True), Variant(tensors_only=True, decomposed=("aten::a", "aten::b")))
    strategy = Failing(0.01, retries)
    error = fail(tmp_path, strategy)
    assert [request.variant for request in strategy.requests] == [Variant(), *retries, Variant()]
    assert [(attempt.name, attempt.error) for attempt in error.attempts] == [
        ("failing (one)", "strategy 'failing' cannot export this model: failure 1."),
        ("failing (one, unwatched)", "strategy 'failing' cannot export this model: failure 2."),
        (
            "failing (one, as a function of tensors, with substitutes for aten::a, aten::b)",
            "strategy 'failing' cannot export this model: failure 3.",
        ),
        ("failing (two)", "strategy 'failing' cannot export this model: failure 4."),
    ]
    assert all(attempt.tried and 0.01 <= attempt.seconds < 5 and attempt.reason for attempt in error.attempts)
    assert all(f"failure {number}." in str(error) for number in range(1, 5))


def test_candidates_are_listed_as_not_tried_when_the_time_is_used_up(tmp_path: Path) -> None:
    first, second = Failing(0.05, (Variant(unwatched=True),)), Other()
    error = fail(tmp_path, first, second, timeout=0.01)
    assert (len(first.requests), len(second.requests)) == (1, 0)
    assert [(attempt.name, attempt.tried) for attempt in error.attempts] == [
        ("failing (one)", True),
        ("failing (one, unwatched)", False),
        ("failing (two)", False),
        ("other (one)", False),
        ("other (two)", False),
    ]
    assert isinstance(error, modelexport.AllStrategiesFailedError)
    assert [name for name, _ in error.failures] == [attempt.name for attempt in error.attempts]
    assert "not tried, because the 0.01 s for all attempts (timeout, --timeout) were used up" in str(error)


def test_no_limit_lets_every_candidate_be_tried(tmp_path: Path) -> None:
    error = fail(tmp_path, Failing(0.01), Other(), timeout=None)
    assert all(attempt.tried for attempt in error.attempts)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_timeout_that_is_not_a_positive_number_is_refused(timeout: Any) -> None:
    with pytest.raises(modelexport.InputError, match="give a positive number of seconds"):
        Attempts(timeout)


def test_model_is_restored_between_attempts(tmp_path: Path) -> None:
    class Looking(Other):
        def capture(self, request: CaptureRequest) -> modelexport.Capture:
            assert not hasattr(request.model, "left_behind")
            return super().capture(request)

    assert all("failure" in str(attempt.error) for attempt in fail(tmp_path, Failing(), Looking()).attempts)


class Singular(nn.Module):
    """Computes large tensors, and then what no exporter translates."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1000, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = self.weight * x
        return torch.linalg.svd((large @ large)[:2, :2])[1]


def live_megabytes() -> int:
    gc.collect()
    found = {id(t): t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and t.device.type == "cpu"}
    return sum(tensor.nbytes for tensor in found.values()) // 10**6


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_failed_attempts_keep_no_tensors_alive(strategy: str, tmp_path: Path) -> None:
    model = Singular()
    before = live_megabytes()
    with pytest.raises(modelexport.StrategyIncompatibleError) as caught:
        modelexport.export_model(model, torch.ones(1), tmp_path / "m.onnx", strategy=strategy)
    assert caught.value.__cause__ is not None, "torch's own report is still there"
    assert caught.value.__cause__.__traceback__ is not None
    assert live_megabytes() == before


def test_model_that_writes_through_data_fails_without_a_crash_and_keeps_its_weights(tmp_path: Path) -> None:
    model = WritesThroughData()
    before = model.lin.weight.detach().clone()
    result = modelexport.export_model(model, torch.ones(1, 2), tmp_path / "m.onnx")
    assert [attempt.name for attempt in result.attempts] == ["fx (dynamo)", "htp (torchscript)"]
    assert "fake tensor" in str(result.attempts[0].error)
    assert torch.equal(model.lin.weight, before)
