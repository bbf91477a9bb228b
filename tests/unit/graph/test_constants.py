"""Constants are equal if type, shape and content are equal."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from modelexport.graph.constants import same_constant


def constant(array: np.ndarray) -> ir.Value:
    return ir.Value(name="c", const_value=ir.Tensor(array))


def strings(*texts: bytes) -> ir.Value:
    return ir.Value(name="s", const_value=ir.StringTensor(list(texts), shape=ir.Shape([len(texts)])))


ONES = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (constant(ONES), constant(ONES.copy()), True),
        (constant(ONES), constant(ONES * 2), False),
        (constant(ONES), constant(ONES.astype(np.float64)), False),
        (constant(ONES), constant(ONES.reshape(3, 2)), False),
        (constant(ONES), ir.Value(name="x"), False),
        (ir.Value(name="x"), ir.Value(name="x"), False),
        (strings(b"a", b"b"), strings(b"a", b"b"), True),
        (strings(b"a", b"b"), strings(b"a", b"c"), False),
    ],
)
def test_constants_are_equal_by_type_shape_and_content(one: ir.Value, other: ir.Value, same: bool) -> None:
    assert same_constant(one, other) is same


def test_outputs_of_constant_nodes_equal_initializers() -> None:
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(ONES))])
    assert same_constant(node.outputs[0], constant(ONES))


def test_constants_over_the_limit_count_as_different() -> None:
    assert not same_constant(constant(ONES), constant(ONES.copy()), max_bytes=ONES.nbytes - 1)
    assert same_constant(constant(ONES), constant(ONES.copy()), max_bytes=ONES.nbytes)
