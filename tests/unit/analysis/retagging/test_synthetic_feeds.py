"""Synthesized inputs for two graphs that should compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from modelexport.analysis.retagging.synthetic_feeds import fill_shapes, pair_inputs, synthesize_feeds


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
