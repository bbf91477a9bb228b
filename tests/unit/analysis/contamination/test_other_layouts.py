"""The check of owners from the file alone, where transposes or reshapes on both sides of a boundary cancel out."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxsim
import pytest
import torch
from torch import nn

import modelexport
from modelexport.analysis.validation.rule import ValidatedFile


class Reshaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x.reshape(x.shape[0], -1, 4))


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x.transpose(1, 2))


class Caller(nn.Module):
    """Changes the layout for a module that changes it back first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.inner(x.transpose(1, 2) if isinstance(self.inner, Transposed) else x.reshape(-1, 3, 2, 2))


MODELS = {
    "transpose": (Caller(Transposed()), (2, 3, 4)),
    "reshape": (Caller(Reshaped()), (2, 3, 4)),
    "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16), (3, 2, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_right_owners_are_not_suspected_if_a_call_starts_with_the_inverse_of_a_change_of_layout(
    tmp_path: Path, name: str
) -> None:
    model, shape = MODELS[name]
    tagged, simplified = tmp_path / "m.onnx", tmp_path / "s.onnx"
    modelexport.export_model(model.eval(), torch.randn(shape), tagged)
    onnx.save(onnxsim.simplify(onnx.load(tagged))[0], simplified)
    retagged = modelexport.retag(simplified, tagged, overwrite=True).files[0]
    for path in (tagged, retagged):
        assert [finding.message for finding in ValidatedFile(path).owner_check.findings()] == []
