"""Shapes of tensors with dynamic axes: names, expressions, missing sizes."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.errors import InputError
from modelexport.profiling.static_cost.tensor_shapes import Axes, Tensor


def value(name: str, *shape: int | str | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def graph(*inputs: onnx.ValueInfoProto, inner: tuple[onnx.ValueInfoProto, ...] = ()) -> onnx.GraphProto:
    return helper.make_graph([], "graph", inputs, [], value_info=inner)


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("batch", 8),
        ("2*length", 14),
        ("Min(512, length)", 7),
        ("((length - 1)//2) + 1", 4),
        ("floor(length/2) + ceiling(length/2)", 7),
        ("Max(1, length - 10)", 1),
        ("batch*length", 56),
        ("length**2", 49),
        ("length/2", None),
        ("unknown + 1", None),
        ("length//0", None),
        ("-length", None),
        ("9**9**9**9", None),
        ("__import__('os')", None),
        ("length.real", None),
        ("batch if 1 else 0", None),
        ("(" * 300, None),
        ("1" * 150, None),
    ],
)
def test_size_of_a_derived_axis_is_computed_or_unknown(expression: str, size: int | None) -> None:
    assert Axes({"batch": 8, "length": 7}).resolve(expression) == size


def test_missing_axis_is_named_with_its_input_and_the_option() -> None:
    axes = Axes({"batch": 8})
    with pytest.raises(InputError) as caught:
        axes.check(graph(value("ids", "batch", "length"), value("mask", "batch", "length")))
    assert "'length' of input 'ids'" in str(caught.value)
    assert "--axis length=1" in str(caught.value)
    assert "batch" not in str(caught.value)


def test_axis_without_a_name_is_given_by_its_input_and_position() -> None:
    shapes = graph(value("x", None, 3))
    with pytest.raises(InputError, match=r"--axis x\.0=1"):
        Axes({}).check(shapes)
    axes = Axes({"x.0": 5})
    axes.check(shapes)
    assert axes.tensors(shapes)["x"].shape == (5, 3)


def test_axis_that_the_model_does_not_have_is_named_with_those_it_has() -> None:
    with pytest.raises(InputError, match="no dynamic axis 'bach'; its dynamic axes: batch"):
        Axes({"bach": 8}).check(graph(value("x", "batch", 3)))
    with pytest.raises(InputError, match="every axis has a fixed size"):
        Axes({"batch": 8}).check(graph(value("x", 2, 3)))


@pytest.mark.parametrize("size", [0, -1, 1.5, True, 2**63, "8"])
def test_size_that_is_not_a_positive_integer_is_refused(size: Any) -> None:
    with pytest.raises(InputError, match="axis 'batch'"):
        Axes({"batch": size})


def test_axis_that_depends_on_data_is_unknown_and_can_be_given() -> None:
    shapes = graph(value("x", 4), inner=(value("found", "u0", 2),))
    unknown = Axes({})
    unknown.check(shapes)
    assert unknown.tensors(shapes)["found"].shape is None
    assert unknown.unknown == ["u0"]
    given = Axes({"u0": 3})
    given.check(shapes)
    assert given.tensors(shapes)["found"].shape == (3, 2)
    assert given.unknown == []


def test_size_in_bytes_rounds_elements_of_four_bits_up() -> None:
    assert Tensor((3,), TensorProto.INT4).size == 2
    assert Tensor((2, 3), TensorProto.FLOAT16).size == 12
    assert Tensor((2, 3), TensorProto.STRING).size is None
    assert Tensor(None, TensorProto.FLOAT).size is None


def test_shape_of_absurd_size_is_unknown() -> None:
    assert Axes({}).tensors(graph(value("x", *[2**60] * 8)))["x"].shape is None
