"""Tensors that were removed together with no-op nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import modelexport
from modelexport.graph.traversal import named_values
from modelexport.ownership.no_ops import RemovedNoOps


def model(nodes: list[onnx.NodeProto], shape: list[Any], constants: dict[str, Any], kind: int) -> ir.Model:
    """A graph that computes h from x by `nodes`, and y from h."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Tanh", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


def same_as_h(
    nodes: list[onnx.NodeProto], shape: list[Any], constants: dict[str, Any], kind: int = TensorProto.FLOAT
) -> str | None:
    first = model(nodes, shape, constants, kind)
    rewritten = model([], shape, {}, kind)
    return RemovedNoOps(first, named_values(first.graph), named_values(rewritten.graph), {"x": "x", "y": "y"}).find("h")


def node(operation: str, *inputs: str, output: str = "h", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operation, list(inputs), [output], **attributes)


NOTHING: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "a product with one": ([node("Mul", "x", "c")], {"c": np.float32(1)}),
    "a sum with zero": ([node("Add", "c", "x")], {"c": np.float32(0)}),
    "a shape that it has": ([node("Reshape", "x", "c")], {"c": np.array([2, 3])}),
    "an expansion to its shape": ([node("Expand", "x", "c")], {"c": np.array([2, 1])}),
    "one after the other": ([node("Mul", "x", "c", output="a"), node("Div", "a", "c")], {"c": np.float32(1)}),
    "with a constant that is made": (
        [node("CastLike", "c", "x", output="a"), node("Mul", "x", "a")],
        {"c": np.int64(1)},
    ),
    "there and back": ([node("Transpose", "x", output="a"), node("Transpose", "a")], {}),
}
SOMETHING: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "a product": ([node("Mul", "x", "c")], {"c": np.float32(1.0000001)}),
    "only the negative": ([node("Relu", "x")], {}),
    "only the very large": ([node("Clip", "x", "a", "b")], {"a": np.float32(-3e38), "b": np.float32(3e38)}),
    "another shape": ([node("Unsqueeze", "x", "c")], {"c": np.array([0])}),
    "another type": ([node("Cast", "x", to=TensorProto.FLOAT16, output="a"), node("Cast", "a", to=1)], {}),
    "with a weight": ([node("MatMul", "x", "c")], {"c": np.eye(3, dtype=np.float32)}),
    "what cannot be tried": ([helper.make_node("Unheard", ["x"], ["h"], domain="of.nobody")], {}),
    "of two": ([node("Mul", "x", "x")], {}),
}


@pytest.mark.parametrize("case", NOTHING)
def test_output_of_a_no_op_equals_its_input(case: str) -> None:
    nodes, constants = NOTHING[case]
    assert same_as_h(nodes, [2, 3], constants) == "x"


@pytest.mark.parametrize("case", SOMETHING)
def test_output_of_a_computation_does_not_equal_its_input(case: str) -> None:
    nodes, constants = SOMETHING[case]
    assert same_as_h(nodes, [2, 3], constants) is None


def test_transposing_a_square_is_not_a_no_op_and_dynamic_axes_have_different_sizes() -> None:
    assert same_as_h([node("Transpose", "x")], [3, 3], {}) is None
    assert same_as_h([node("Transpose", "x")], ["rows", "columns"], {}) is None
    assert same_as_h([node("Mul", "x", "c")], ["rows", "columns"], {"c": np.float32(1)}) == "x"


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        (TensorProto.INT64, np.int64(1)),
        (TensorProto.DOUBLE, np.float64(1)),
        (TensorProto.FLOAT16, np.float16(1)),
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16(1)),
    ],
)
def test_no_ops_are_found_for_every_element_type(kind: int, one: Any) -> None:
    assert same_as_h([node("Mul", "x", "c")], [4], {"c": one}, kind) == "x"
    assert same_as_h([node("Abs", "x")], [4], {}, kind) is None


def test_nodes_with_large_constants_are_not_run() -> None:
    assert same_as_h([node("Mul", "x", "c")], [1024], {"c": np.ones(1024, dtype=np.float32)}) is None


class Scaled(nn.Embedding):
    """Multiplies by a factor that is one by default, as BART's embeddings do."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = Scaled(10, 4)
        self.lin = nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lin(self.embed(ids))


@pytest.mark.regression
def test_module_that_ends_in_a_removed_no_op_is_extracted(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    net = Net().eval()
    ids = torch.tensor([[1, 2, 3]])
    result = modelexport.export_model(net, ids, tmp_path / "net.onnx", strategy="fx")
    operations = [node.op for node in result.document.nodes]
    assert "Mul" not in operations, "torch has removed the product"
    (call,) = [call for call in result.document.calls if call.id == "embed"]
    assert call.outputs[0].tensor is not None
    submodel = modelexport.extract_module(result.onnx_path, "embed")
    session = onnxruntime.InferenceSession(ir.to_proto(submodel).SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: ids.numpy()})
    np.testing.assert_array_equal(got, net.embed(ids).detach().numpy())


def test_call_that_ends_in_a_removed_no_op_has_its_result_in_bfloat16(tmp_path: Path) -> None:
    net = Net().eval().bfloat16()
    result = modelexport.export_model(net, torch.tensor([[1, 2, 3]]), tmp_path / "net.onnx", strategy="fx")
    assert "Mul" not in [node.op for node in result.document.nodes], "torch has removed the product"
    (call,) = [call for call in result.document.calls if call.id == "embed"]
    assert call.outputs[0].tensor is not None


class Unchanged(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0


def test_refusal_says_that_a_module_without_operations_returns_its_arguments(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), Unchanged(), nn.Linear(4, 4)).eval()
    result = modelexport.export_model(net, torch.randn(2, 4), tmp_path / "net.onnx", strategy="fx")
    with pytest.raises(modelexport.ExtractionError, match="it returned its arguments"):
        modelexport.extract_module(result.onnx_path, "1")
    assert modelexport.validate(result.onnx_path, check_contamination=True).findings == ()
