"""A graph agrees with a model only where their values do, also where no tensor has distinctive values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from modelexport.capture.by_value.attribution_by_value import ValueMatch, attribute_by_value
from modelexport.capture.module_tree import read_module_tree
from modelexport.errors import InputError
from modelexport.exporting.export import export_model
from modelexport.exporting.file_tagging import tag_file
from modelexport.hierarchy import CheckOutcome


class Computes(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def add_three() -> ir.Model:
    """An integer graph: masks, sizes and indices have no distinctive values."""
    x = ir.Value(name="x", shape=ir.Shape([2, 3]), type=ir.TensorType(ir.DataType.INT64))
    three = ir.Value(name="three", const_value=ir.tensor(np.array(3, dtype=np.int64)))
    total = ir.Value(name="total", shape=ir.Shape([2, 3]), type=ir.TensorType(ir.DataType.INT64))
    node = ir.node("Add", [x, three], outputs=[total])
    graph = ir.Graph([x], [total], nodes=[node], initializers=[three], opset_imports={"": 20}, name="add_three")
    return ir.Model(graph, ir_version=10)


INPUT = torch.arange(6).reshape(2, 3)


def match(function: Callable[[torch.Tensor], torch.Tensor]) -> ValueMatch:
    model = Computes(function)
    return attribute_by_value(add_three(), model, read_module_tree(model), (INPUT,), {})


def test_graph_without_distinctive_tensors_agrees_with_the_model_that_it_computes() -> None:
    found = match(lambda x: x + 3)
    assert found.distinctive == 0
    assert found.agrees
    assert found.describe_agreement() == "it has no distinctive tensors, and its outputs match"


@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2, lambda x: x + 4, lambda x: (x + 3).flip(1), lambda x: (x + 3).float()],
    ids=["other operator", "other weight", "other order", "other type"],
)
def test_graph_without_distinctive_tensors_does_not_agree_with_another_model(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    found = match(function)
    assert found.distinctive == 0
    assert not found.agrees


def test_tag_file_refuses_another_model_without_distinctive_tensors(tmp_path: Path) -> None:
    path = tmp_path / "add_three.onnx"
    ir.save(add_three(), path)
    with pytest.raises(
        InputError, match=r"does not compute what Computes .* no distinctive tensors, and its outputs differ"
    ):
        tag_file(path, Computes(lambda x: x * 2), INPUT, tmp_path / "tagged.onnx")


class ReturnsInput(nn.Module):
    """Returns its input unchanged, and another result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.linear(x)


def test_input_of_the_root_is_the_graph_input_when_the_model_returns_it(tmp_path: Path) -> None:
    result = export_model(
        ReturnsInput().eval(), torch.randn(2, 4), tmp_path / "m.onnx", strategy="usage_based", check="run"
    )
    root = next(call for call in result.document.calls if not call.id)
    (graph_input,) = ir.load(tmp_path / "m.onnx").graph.inputs
    assert [tensor.tensor for tensor in root.inputs] == [graph_input.name]
    assert root.outputs[0].tensor != graph_input.name
    assert result.check.outcome is CheckOutcome.EQUAL
