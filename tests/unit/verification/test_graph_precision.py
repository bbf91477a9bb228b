"""The types that a graph computes with, and the tolerance that follows from them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from modelexport.verification.difference import EIGHT_BITS, FOUR_BITS, Tolerance, compare, precisions_of


def precisions(inputs: str, nodes: str, values: str = "") -> frozenset[str]:
    declared = f"<{values}>" if values else ""
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float[2] y) {declared} {{ {nodes} }}'
    return precisions_of(ir.from_proto(onnx.parser.parse_model(text)).graph)


SCALE = "float s = {0.1}"


@pytest.mark.parametrize(
    ("inputs", "nodes", "values", "found"),
    [
        pytest.param("float[2] x", "y = Relu(x)", "", set(), id="float32"),
        pytest.param(
            "float[2] x", "h = Cast<to = 10>(x) y = Cast<to = 1>(h)", "float16[2] h", {"float16"}, id="float16"
        ),
        pytest.param(
            "float[2] x",
            "h = QuantizeLinear(x, s) y = DequantizeLinear(h, s)",
            f"{SCALE}, uint8[2] h",
            {EIGHT_BITS},
            id="quantized activations",
        ),
        pytest.param(
            "float[2] x",
            "h = DequantizeLinear(w, s) y = Mul(x, h)",
            f"{SCALE}, int8[2] w = {{1, 2}}, float[2] h",
            {EIGHT_BITS},
            id="quantized weights",
        ),
        pytest.param(
            "float[2] x",
            "h = DequantizeLinear(w, s) y = Mul(x, h)",
            f"{SCALE}, int4[2] w = {{1, 2}}, float[2] h",
            {FOUR_BITS},
            id="weights of four bits",
        ),
        pytest.param("uint8[2] x", "y = Cast<to = 1>(x)", "", set(), id="pixels are exact"),
        pytest.param(
            "int64[2] x", "h = Cast<to = 2>(x) y = Cast<to = 1>(h)", "uint8[2] h", set(), id="small numbers are exact"
        ),
    ],
)
def test_types_that_a_graph_computes_with(inputs: str, nodes: str, values: str, found: set[str]) -> None:
    assert precisions(inputs, nodes, values) - {"float32"} == found


def test_tolerance_of_quantized_values_is_relative_to_the_largest_element() -> None:
    reference = np.array([100.0, 0.0], np.float32)
    for error, is_out in ((3.0, False), (3.2, True)):
        value = reference + np.array([0.0, error], np.float32)
        assert compare(value, reference, Tolerance(), EIGHT_BITS).is_out == is_out
        assert compare(value, reference, Tolerance(), "float32").is_out
        assert compare(value, reference, Tolerance(atol=1.0), EIGHT_BITS).is_out


def test_signal_to_noise_ratio_is_in_decibels() -> None:
    reference = np.array([3.0, 4.0], np.float32)
    assert compare(reference * np.float32(1.01), reference, Tolerance()).sqnr == pytest.approx(40, abs=0.01)
    assert compare(reference, reference, Tolerance()).sqnr is None
    assert compare(reference, reference * 0, Tolerance()).sqnr is None
