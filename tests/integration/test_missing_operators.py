"""Operators that the TorchScript exporter cannot translate: exported as what torch makes of them, else refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tests.support.torchscript_gaps import Differences, Ranks, Singular
from torch import nn

import modelexport
from modelexport.verification.contamination_by_value import validate_owners_by_value

pytestmark = pytest.mark.integration


class TwoOfThem(nn.Module):
    """Both of its modules need an operator that the exporter lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Differences(), Differences()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (first, rows), (second, _) = self.one(x), self.two(x)
        return first + second, rows


def test_what_torch_can_take_apart_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = TwoOfThem().eval(), torch.randn(3, 5)
    with pytest.raises(torch.onnx.errors.UnsupportedOperatorError):
        torch.onnx.export(model, (x,), str(tmp_path / "plain.onnx"), dynamo=False)
    path = tmp_path / "ours.onnx"
    result = modelexport.export_model(model, (x,), path, strategy="htp")
    assert result.document.exporter == "torchscript-decomposed"
    assert [(attempt.exporter, attempt.variant) for attempt in result.attempts] == [
        ("torchscript", ""),
        ("torchscript-decomposed", "with substitutes for aten::diff"),
    ]
    assert [note for note in result.notes if "cannot translate aten::diff" in note]
    assert result.coverage == 1.0
    assert {"one", "one.lin", "two", "two.lin", ""} == {record.module for record in result.document.nodes}
    assert validate_owners_by_value(path, model, (x,)).findings == ()
    session = onnxruntime.InferenceSession(path)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        for one, other in zip(found, model(x), strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-6)


def test_what_needs_none_is_plain_torchscripts(tmp_path: Path) -> None:
    result = modelexport.export_model(nn.Linear(5, 2), torch.randn(3, 5), tmp_path / "m.onnx", strategy="htp")
    assert result.document.exporter == "torchscript"


def test_what_torch_cannot_take_apart_is_refused_as_before(tmp_path: Path) -> None:
    with pytest.raises(modelexport.StrategyIncompatibleError, match="UnsupportedOperatorError") as refused:
        modelexport.export_model(Singular(), torch.randn(3, 5), tmp_path / "m.onnx", strategy="htp")
    assert isinstance(refused.value.__cause__, torch.onnx.errors.UnsupportedOperatorError)
    assert list(tmp_path.iterdir()) == []


def test_what_would_be_no_valid_model_is_refused_as_before(tmp_path: Path) -> None:
    with pytest.raises(modelexport.StrategyIncompatibleError, match="UnsupportedOperatorError"):
        modelexport.export_model(Ranks(), torch.randint(0, 9, (3, 5)), tmp_path / "m.onnx", strategy="htp")
    assert list(tmp_path.iterdir()) == []
