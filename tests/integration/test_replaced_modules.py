"""Modules that a forward puts in the place of others: they are called by the path of that place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport

pytestmark = pytest.mark.integration


class Full(nn.Module):
    def __init__(self, lin: nn.Linear) -> None:
        super().__init__()
        self.lin = lin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).relu() * 2


class Sparse(Full):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x)


class Switching(nn.Module):
    """Takes another kind of layer for short inputs, as long-sequence attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Sparse(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 8 and isinstance(self.attention, Sparse):
            self.attention = Full(self.attention.lin)
        return self.attention(x) + 1


def test_nodes_of_a_module_that_replaced_another_belong_to_its_place(tmp_path: Path) -> None:
    result = modelexport.export_model(Switching(), torch.randn(2, 3, 4), tmp_path / "m.onnx", strategy="fx")
    owners = {node.op: node.module for node in result.document.nodes}
    assert owners["Relu"] == owners["Mul"] == "attention"
    assert owners["Add"] == ""
    assert [call.id for call in result.document.calls] == ["", "attention", "attention.lin"]
