"""The hierarchy of a submodel describes what the submodel contains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport
from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.query.statistics import count_modules


class Scaled(nn.Module):
    """Uses a parameter of its parent without registering the parent as its submodule."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self._parent = (parent,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self._parent[0].scale


class Net(nn.Module):
    """A root with parameters of its own: one that the child uses, and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.offset = nn.Parameter(torch.linspace(2.0, 3.0, 4))
        self.register_buffer("limit", torch.linspace(4.0, 5.0, 4))
        self.norm = nn.LayerNorm(4)
        self.child = Scaled(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(self.child(self.norm(x)) + self.offset, self.limit)


@pytest.mark.parametrize("target", ["child", "child.linear", ""])
def test_modules_around_a_submodel_have_only_the_weights_that_the_submodel_contains(
    tmp_path: Path, target: str
) -> None:
    result = modelexport.export_model(Net().eval(), (torch.randn(2, 4),), tmp_path / "net.onnx", optimize=False)
    submodel = Extractor(result.onnx_path).extract(target)
    root = submodel.document.modules[0]
    expected = {"child": {"scale"}, "child.linear": set(), "": {"scale", "offset"}}[target]
    assert set(root.parameters) == expected
    assert set(root.buffers) == ({"limit"} if target == "" else set())
    statistics = count_modules(submodel.document)[0]
    initializers = submodel.model.graph.initializers.values()
    stored = sum(value.const_value.size for value in initializers if value.const_value is not None)
    assert statistics.parameters == stored - (4 if target == "" else 0)
