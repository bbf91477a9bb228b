"""Values that an optimizer renamed because it changed their memory layout, matched through data flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from modelexport.ownership.value_correspondence import ValueCorrespondence

# A weight in another layout: permuted and padded.
WEIGHTS = {name: np.arange(start, start + 9, dtype=np.float32) for name, start in (("w", 1), ("v", 11), ("s", 21))}
WEIGHTS |= {"z": np.zeros(9, np.float32)}
OTHER_LAYOUT = {f"{name}2": np.pad(weight[::-1], 3) for name, weight in WEIGHTS.items()}
RECOMPUTED = {f"{name}3": weight * np.float32(0.7) for name, weight in WEIGHTS.items()}


def parsed(nodes: str, weights: Mapping[str, np.ndarray], dtype: Any) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["": 18, "layout": 1]> g (float[1,9] x) => (float[1,9] y) {{ {nodes} }}'
    proto = onnx.parser.parse_model(text)
    arrays = {name: array.astype(dtype) for name, array in weights.items()}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return ir.from_proto(proto)


def completed(original: str, rewritten: str, dtype: Any = np.float32) -> dict[str, str]:
    """For the renamed values of the rewritten graph, the original values that they complete."""
    before = parsed(original, WEIGHTS, dtype)
    after = parsed(rewritten, {**OTHER_LAYOUT, **RECOMPUTED, "z": WEIGHTS["z"]}, dtype)
    values = ValueCorrespondence(before, after)
    known = {value for node in after.graph for value in node.outputs if value.name not in values.original_values}
    found = {str(value.name): values.original_of(value) for value in known}
    # They are not equal to the original: a call cannot begin or end there.
    assert not {value.name for value in known} & set(values.surviving.values())
    return {name: str(original.name) for name, original in found.items() if original is not None}


BLOCK = "c = Conv(x, w) r = Relu(c) d = Conv(r, v) a = Add(d, r) q = Relu(a) y = Sigmoid(q)"


def test_value_completes_the_original_node_with_the_same_inputs_and_what_the_node_says_it_also_does() -> None:
    # The second does the addition, whose other input it consumes, and the activation that it names.
    rewritten = """
        t0 = layout.Conv<activation = "Relu">(x, w2) t1 = layout.Conv<activation = "Relu">(t0, v2, t0)
        t2 = layout.Back(t1) y = layout.End(t2)"""
    assert completed(BLOCK, rewritten) == {"t0": "r", "t1": "q"}


def test_work_that_another_node_does_is_not_counted_twice() -> None:
    rewritten = "t0 = layout.Conv(x, w2) t1 = Relu(t0) t2 = layout.Conv(t1, v2, t1) t3 = Relu(t2) y = layout.End(t3)"
    assert completed(BLOCK, rewritten) == {"t0": "c", "t1": "r", "t2": "a", "t3": "q"}


def test_sum_with_a_value_that_the_node_consumes_anyway_may_be_done_by_another_node() -> None:
    rewritten = """
        t0 = layout.Conv<activation = "Relu">(x, w2) t1 = layout.Conv(t0, v2) t2 = Add(t1, t0) t3 = Relu(t2)
        y = layout.End(t3)"""
    assert completed(BLOCK, rewritten) == {"t0": "r", "t1": "d", "t2": "a", "t3": "q"}


def test_node_that_was_done_on_the_way_to_a_value_is_not_done_again() -> None:
    # The second convolution consumes the input of the first, too: not its weights but their order tells them apart.
    original = "r = Relu(x) c = Conv(r, w) s1 = Relu(c) d = Conv(s1, v) a = Add(d, r) y = Sigmoid(a)"
    rewritten = """
        r = Relu(x) t0 = layout.Conv<activation = "Relu">(r, w3) t1 = layout.Conv(t0, v3, r) y = layout.End(t1)"""
    assert completed(original, rewritten) == {"t0": "s1", "t1": "a"}


def test_value_before_a_change_of_layout_completes_the_one_with_its_own_name() -> None:
    rewritten = """
        t0 = layout.Conv<activation = "Relu">(x, w2) r = layout.Back(t0) t1 = layout.Conv(r, v2, r) q = layout.Rest(t1)
        y = layout.End(q)"""
    assert completed(BLOCK, rewritten) == {"t0": "r", "t1": "a"}


def test_node_that_does_the_rest_is_not_a_change_of_layout() -> None:
    # Nothing says that the convolution does the activations, too.
    original, rewritten = "c = Conv(x, w) r = Relu(c) y = Sigmoid(r)", "t0 = layout.Conv(x, w2) y = layout.Both(t0)"
    assert completed(original, rewritten) == {"t0": "c"}


@pytest.mark.parametrize(
    ("back", "found"), [("layout.Back(t0)", "b"), ("Mul(t0, v2)", "c"), ("layout.Scale(t0, v2)", "c")]
)
def test_weights_of_the_next_node_became_part_of_those_of_this_one_unless_the_next_still_has_some(
    back: str, found: str
) -> None:
    original = "c = Conv(x, w) b = Mul(c, s) y = Sigmoid(b)"
    assert completed(original, f"t0 = layout.Conv(x, w3) t1 = {back} y = layout.End(t1)")["t0"] == found


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("layout.Conv(x, v2)", "layout.Conv(x, w2)", {"t0": "d", "t1": "c"}),
        ("layout.Other(x, v2)", "layout.Other(x, w2)", {"t0": "d", "t1": "c"}),
        ("layout.Conv(x, v3)", "layout.Conv(x, w3)", {}),
        ("layout.Conv<group = 2>(x, v3)", "layout.Conv<group = 1>(x, w3)", {"t0": "d", "t1": "c"}),
        ("layout.Other(x, v3)", "layout.Other(x, w3)", {}),
        ("layout.Conv(x, z)", "layout.Conv(x, z)", {}),
    ],
)
def test_of_two_nodes_with_the_same_input_weights_and_attributes_tell_which_one_it_is(
    first: str, second: str, found: dict[str, str]
) -> None:
    original = "c = Conv<group = 1>(x, w) d = Conv<group = 2>(x, v) a = Add(c, d) y = Sigmoid(a)"
    rewritten = f"t0 = {first} t1 = {second} t2 = layout.Sum(t1, t0) y = layout.End(t2)"
    assert completed(original, rewritten) == found


def test_node_that_consumes_no_known_value_completes_none() -> None:
    assert completed(BLOCK, "t0 = layout.Conv(w2) t1 = Relu(t0) y = layout.End(t1)") == {}


def test_node_between_two_known_ones_completes_what_the_second_consumes() -> None:
    original = "c = Conv(x, w) g = Sigmoid(c) m = Mul(c, g) d = Conv(m, v) y = Sigmoid(d)"
    rewritten = "t0 = layout.Conv(x, w2) t1 = layout.Swish(t0) t2 = layout.Conv(t1, v2) y = layout.End(t2)"
    assert completed(original, rewritten) == {"t0": "c", "t1": "m", "t2": "d"}


def test_change_of_layout_between_two_known_ones_completes_none() -> None:
    original = "c = Conv(x, w) d = Conv(c, v) y = Sigmoid(d)"
    rewritten = "t0 = layout.Conv(x, w2) t1 = layout.Swap(t0) t2 = layout.Conv(t1, v2) y = layout.End(t2)"
    assert completed(original, rewritten) == {"t0": "c", "t2": "d"}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_node_with_weights_is_the_only_consumer_that_has_some(dtype: Any) -> None:
    # A normalization became a product: another operator, with other weights.
    original = "n = Norm(x, w) g = Sigmoid(x) m = Mul(n, g) y = Sigmoid(m)"
    rewritten = "t0 = layout.Product(x, w3) t1 = layout.Gate(t0, x) y = layout.End(t1)"
    assert completed(original, rewritten, dtype) == {"t0": "n"}


def test_node_whose_result_is_known_is_not_done_by_another() -> None:
    original = "c = Conv(x, w) d = Conv(x, v) a = Add(c, d) y = Sigmoid(a)"
    rewritten = "d = Conv(x, v2) t0 = layout.Conv(x, w3) t1 = layout.Sum(t0, d) y = layout.End(t1)"
    assert completed(original, rewritten) == {"t0": "c"}


def test_node_with_an_input_that_is_not_known_completes_none() -> None:
    original = "c = Conv(x, w) s1 = Sigmoid(x) t = Tanh(x) m = Mul(s1, t) a = Add(c, m) y = Relu(a)"
    rewritten = "u = layout.Both(x, x) t0 = layout.Conv(x, w2, u) y = layout.End(t0)"
    assert completed(original, rewritten) == {}
