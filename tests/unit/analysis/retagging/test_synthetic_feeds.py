"""Synthesized inputs for two graphs that should compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from modelexport.analysis.retagging.synthetic_feeds import feeds_of_model, fill_shapes, pair_inputs, synthesize_feeds
from modelexport.errors import InputError


@pytest.mark.parametrize("element_type", ["int64", "bool", "float"])
@pytest.mark.parametrize("shape", ["", "[1]", "[2, 3]"])
def test_inputs_of_every_rank_and_type_are_synthesized(element_type: str, shape: str) -> None:
    text = f'<ir_version: 10, opset_import: ["": 20]> g ({element_type}{shape} x) => (y) {{ y = Identity(x) }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    (feeds,) = synthesize_feeds(pair_inputs(model, model, {}))
    expected = model.graph.inputs[0]
    assert feeds[0].dtype == expected.dtype.numpy()
    assert feeds[0].shape == tuple(expected.shape)
    if element_type != "float":
        # A mask of zeros masks everything.
        assert feeds[0].any()


def test_scalars_are_filled_from_an_option() -> None:
    filled = fill_shapes(["length=scalar:int64"])
    assert filled["length"].shape == ()
    assert filled["length"].dtype == np.int64


TWO_INPUTS = """<ir_version: 10, opset_import: ["": 20]>
g (int64[batch, length] ids, float[batch, 3] x) => (y, z) { y = Identity(ids) z = Identity(x) }"""


def test_dynamic_axes_have_the_given_sizes_and_the_others_grow() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TWO_INPUTS))
    found = list(feeds_of_model(model, None, {}, axes={"batch": 7}, shapes={}))
    assert [feeds["ids"].shape for feeds in found] == [(7, 4), (7, 16), (7, 64), (7, 224)]
    assert all(feeds["x"].shape == (7, 3) for feeds in found)
    # An index that every table has.
    assert set(np.unique(found[-1]["ids"])) == {0, 1}
    (feeds,) = feeds_of_model(model, None, {}, axes={"batch": 7}, shapes={"ids": (7, 2)})
    assert feeds["ids"].shape == (7, 2)


@pytest.mark.parametrize(
    ("axes", "shapes", "message"),
    [
        ({"other": 2}, {}, "no dynamic axis 'other': it has batch, length"),
        ({}, {"y": (2,)}, "no input 'y'"),
        ({}, {"x": (2, 4)}, r"'x' was given as \[2, 4\]"),
    ],
)
def test_unknown_axes_and_wrong_shapes_are_refused(
    axes: dict[str, int], shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TWO_INPUTS))
    with pytest.raises(InputError, match=message):
        list(feeds_of_model(model, None, {}, axes=axes, shapes=shapes))
