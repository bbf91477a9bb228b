"""Names of outputs and axes: after the fields of the model's result, and what torch is told to write."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support.plain import export_plainly
from torch import nn

import modelexport

Pair = namedtuple("Pair", "zebra apple")


class Returning(nn.Module):
    """Returns its three tensors in a structure of the test's choice."""

    def __init__(self, arrange: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.arrange = arrange

    def forward(self, x: torch.Tensor) -> Any:
        first = self.lin(x)
        return self.arrange(first, torch.relu(first), first.tanh().sum(-1))


_RESULTS = {
    "tensor": (lambda a, b, c: c, {"output": "ReduceSum"}),
    "dict": (
        lambda a, b, c: {"zebra": a, "none": None, "nested": (b, {"apple": c})},
        {"zebra": "Gemm", "nested.0": "Relu", "nested.1.apple": "ReduceSum"},
    ),
    "named tuple": (lambda a, b, c: Pair(b, c), {"zebra": "Relu", "apple": "ReduceSum"}),
    "tuple": (lambda a, b, c: (b, c), {"output.0": "Relu", "output.1": "ReduceSum"}),
    "name of an argument": (lambda a, b, c: {"x": b, "y": c}, {"output.x": "Relu", "y": "ReduceSum"}),
}


@pytest.mark.parametrize("strategy", ["fx", "htp"])
@pytest.mark.parametrize(("arrange", "expected"), _RESULTS.values(), ids=_RESULTS)
def test_outputs_are_named_after_the_fields_of_the_result(
    tmp_path: Path, arrange: Any, expected: dict[str, str], strategy: str
) -> None:
    model, x = Returning(arrange), torch.randn(2, 4)
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", strategy=strategy, output_names="auto")
    graph = onnx.load(result.onnx_path).graph
    producers = {name: node.op_type for node in graph.node for name in node.output}
    assert {value.name: producers[value.name] for value in graph.output} == expected


def test_file_with_names_is_the_one_that_torch_writes_with_them(tmp_path: Path) -> None:
    model, x = Returning(_RESULTS["dict"][0]), torch.randn(2, 4)
    result = modelexport.export_model(model, x, tmp_path / "m.onnx", output_names="auto")
    plain = export_plainly(model, (x,), {}, tmp_path / "plain.onnx", output_names=list(_RESULTS["dict"][1]))
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


def test_output_does_not_get_the_name_of_another_tensor(tmp_path: Path) -> None:
    """torch calls the result of the layer `linear`; with two tensors of that name the file would be invalid."""
    model = Returning(lambda a, b, c: {"linear": b, "sum": c})
    result = modelexport.export_model(model, torch.randn(2, 4), tmp_path / "m.onnx", output_names="auto")
    proto = onnx.load(result.onnx_path)
    onnx.checker.check_model(proto)
    assert [value.name for value in proto.graph.output] == ["output.linear", "sum"]


def test_traced_outputs_have_the_dynamic_axes_of_the_inputs(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"same": x * 2, "flat": x.flatten(), "longer": torch.cat([x, x[:, :1]], 1)}

    result = modelexport.export_model(
        Both(), torch.randn(3, 4), tmp_path / "m.onnx", strategy="htp", dynamic="auto", output_names="auto"
    )
    shapes = {
        value.name: [size.dim_param for size in value.type.tensor_type.shape.dim]
        for value in onnx.load(result.onnx_path).graph.output
    }
    assert shapes == {"same": ["batch", "x_1"], "flat": ["flat_0"], "longer": ["batch", "longer_1"]}


def test_note_says_that_torch_wrote_another_opset(tmp_path: Path) -> None:
    result = modelexport.export_model(
        nn.LayerNorm(4), torch.randn(2, 4), tmp_path / "m.onnx", strategy="fx", opset_version=9
    )
    (note,) = (note for note in result.notes if "opset" in note)
    written = onnx.load(result.onnx_path).opset_import[0].version
    assert written != 9
    assert f"opset {written}" in note
    assert " 9" in note
