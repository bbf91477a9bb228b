"""Repeated structure: which calls form a group, and what is said of those that differ."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks.tagged_models import LAYER, write_tagged_model
from onnx import helper
from tests.conftest import Exporter
from tests.support.scoped_models import layer, saved, scoped, stack

import modelexport
from modelexport.viewing.page_data import PageData


def groups(path: Path) -> list[tuple[str, list[str], dict[str, tuple[str, ...]]]]:
    """The label and calls of each group, and the differences of the calls that differ."""
    data: PageData = modelexport.view(path).data

    def name(call: int) -> str:
        return data.strings[data.calls.id[call]]

    return [
        (repeat.label, [name(call) for call in repeat.calls], {name(odd.call): odd.differences for odd in repeat.odd})
        for repeat in data.repeats
    ]


def of_layers(folder: Path, *layers: list[onnx.NodeProto]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    ((label, calls, odd),) = groups(saved(stack(layers), folder / "stack.onnx"))
    assert label == "Layer"
    return calls, odd


def test_layers_that_do_the_same_form_one_group(tmp_path: Path) -> None:
    assert of_layers(tmp_path, *map(layer, range(4))) == ([f"layers.{number}" for number in range(4)], {})


def test_layer_with_another_node_is_odd(tmp_path: Path) -> None:
    calls, odd = of_layers(tmp_path, layer(0), layer(1, ops=("MatMul", "Add", "Relu")), layer(2))
    assert calls == ["layers.0", "layers.2"]
    assert odd == {"layers.1": ("1 node more: Add",)}


def test_layer_with_another_operator_is_odd(tmp_path: Path) -> None:
    _, odd = of_layers(tmp_path, layer(0), layer(1), layer(2, ops=("MatMul", "Tanh")))
    assert odd == {"layers.2": ("1 node more: Tanh", "1 node fewer: Relu")}


def test_layer_with_another_attribute_is_odd(tmp_path: Path) -> None:
    softmax = [layer(number, ops=("MatMul", "Softmax"), axis=axis) for number, axis in enumerate((-1, -1, 0))]
    _, odd = of_layers(tmp_path, *softmax)
    assert odd == {"layers.2": ("Softmax: attribute axis 0 instead of -1",)}


def test_layer_with_another_shape_is_odd(tmp_path: Path) -> None:
    model = stack([layer(number) for number in range(3)])
    for value in model.graph.value_info:
        if value.name == "layer_1_0":
            value.type.tensor_type.shape.dim[0].dim_value = 8
    ((_, calls, odd),) = groups(saved(model, tmp_path / "stack.onnx"))
    assert calls == ["layers.0", "layers.2"]
    assert odd == {"layers.1": ("MatMul: output shape 8 x 4 instead of 2 x 4",)}


def test_layer_with_the_same_nodes_connected_differently_is_odd(tmp_path: Path) -> None:
    def joined(number: int, second: str) -> list[onnx.NodeProto]:
        nodes = layer(number, ops=("MatMul", "Relu", "Add"))
        nodes[-1].input[1] = second
        return nodes

    usual = [joined(number, f"layer_{number}_0") for number in range(2)]
    calls, odd = of_layers(tmp_path, *usual, joined(2, "layer_2_1"))
    assert calls == ["layers.0", "layers.1"]
    assert odd == {"layers.2": ("the same nodes are connected differently",)}


def test_modules_with_different_names_form_no_group(tmp_path: Path) -> None:
    def named(name: str, source: str, target: str) -> onnx.NodeProto:
        return scoped(helper.make_node("Relu", [source], [target]), name, "models.Part")

    path = saved(stack([[named("query", "x", "a"), named("key", "a", "b")]]), tmp_path / "parts.onnx")
    assert groups(path) == []


def test_layers_with_calls_inside_form_one_group(tmp_path: Path) -> None:
    ((label, calls, odd),) = groups(write_tagged_model(tmp_path / "stack.onnx", 100))
    assert (label, len(calls), odd) == ("StackLayer", 100 // sum(len(ops) for _, _, ops in LAYER), {})


@pytest.mark.xdist_group("albert")
def test_calls_of_one_module_form_a_group(exported: Exporter) -> None:
    found = groups(exported("albert").path)
    repeated = [calls for _, calls, _ in found if any("@1" in call for call in calls)]
    assert repeated
    assert all(len({call.partition("@")[0] for call in calls}) == 1 for calls in repeated)
