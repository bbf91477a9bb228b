"""Graph inputs are matched to example inputs, and a graph that cannot run is reported."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from modelexport.capture.by_value.graph_run import match_inputs, run_graph
from modelexport.errors import InputError, StrategyIncompatibleError


def graph(*inputs: str) -> ir.Model:
    """Adds up its inputs and a weight, one after the other."""
    values = [ir.Value(name=name, shape=ir.Shape([2, 5]), type=ir.TensorType(ir.DataType.FLOAT)) for name in inputs]
    weight = ir.Value(name="weight", const_value=ir.tensor(np.arange(10, dtype=np.float32).reshape(2, 5)))
    nodes: list[ir.Node] = []
    total = values[0]
    for number, value in enumerate([*values[1:], weight]):
        nodes.append(ir.node("Add", [total, value], outputs=[ir.Value(name=f"sum_{number}")]))
        total = nodes[-1].outputs[0]
    made = ir.Graph(values, [total], nodes=nodes, initializers=[weight], opset_imports={"": 20}, name="sums")
    return ir.Model(made, ir_version=10)


def tensors(*names: str) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.zeros(2, 5)) for name in names]


@pytest.mark.parametrize(
    ("wanted", "given_names", "places"),
    [
        (("a", "b"), ("b", "a"), {"a": 1, "b": 0}),
        (("pair_0", "options_scale"), ("options.scale", "pair.0"), {"pair_0": 1, "options_scale": 0}),
        (("x1", "x2"), ("a", "b"), {"x1": 0, "x2": 1}),
        (("x1", "a"), ("a", "b"), {"x1": 1, "a": 0}),
        (("b",), ("a", "b"), {"b": 1}),
    ],
    ids=["by name", "nested", "by order", "the rest by order", "not all are read"],
)
def test_inputs_are_matched(wanted: tuple[str, ...], given_names: tuple[str, ...], places: dict[str, int]) -> None:
    assert match_inputs(graph(*wanted).graph, tensors(*given_names)) == places


def test_input_without_a_tensor_is_named() -> None:
    with pytest.raises(InputError, match=r"inputs a, b, .* 1 example inputs \(a\): no tensor is left for 'b'"):
        match_inputs(graph("a", "b").graph, tensors("a"))


def test_graph_that_cannot_run_is_reported_in_one_line() -> None:
    feeds = {"a": np.zeros((3, 4), np.float32), "b": np.zeros((2, 5), np.float32)}
    with pytest.raises(StrategyIncompatibleError, match="onnxruntime cannot run the graph: ") as caught:
        run_graph(graph("a", "b"), feeds, 40)
    assert "\n" not in str(caught.value)
