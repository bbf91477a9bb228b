"""The arithmetic of operators, against counts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx.defs
import pytest
from onnx import helper

from modelexport.profiling.static_cost.operator_costs import cost_of
from modelexport.profiling.static_cost.operator_formulas import NodeShapes, Shape, UnknownShapeError, Work

Shapes = Sequence[Shape | None]


def count(op: str, inputs: Shapes, outputs: Shapes, domain: str = "", **attributes: Any) -> tuple[int, int]:
    names = ["" if shape is None else f"x{position}" for position, shape in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{n}" for n in range(len(outputs))], domain=domain, **attributes)
    formula = cost_of(node)
    assert formula is not None
    work = formula(NodeShapes(node, inputs, outputs))
    return work.macs, work.other


def test_flops_are_two_for_each_mac_and_other_steps_are_counted_apart() -> None:
    work = Work(macs=10, other=3)
    assert (work.flops, work.operations) == (20, 23)


# Each count is written as a product that can be read off the definition of the operator.
@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "macs", "other"),
    [
        ("Gemm", [(4, 8), (16, 8), (16,)], [(4, 16)], {"transB": 1}, 4 * 16 * 8, 4 * 16),
        ("Gemm", [(8, 4), (8, 16)], [(4, 16)], {"transA": 1}, 4 * 16 * 8, 0),
        ("MatMul", [(2, 3, 4, 8), (8, 5)], [(2, 3, 4, 5)], {}, 2 * 3 * 4 * 5 * 8, 0),
        ("MatMul", [(8,), (8,)], [()], {}, 8, 0),
        ("Conv", [(2, 3, 8, 8), (16, 3, 3, 3), (16,)], [(2, 16, 8, 8)], {}, 2 * 16 * 64 * 27, 2 * 16 * 64),
        ("Conv", [(1, 8, 9), (8, 1, 3)], [(1, 8, 7)], {"group": 8}, 8 * 7 * 3, 0),
        ("QLinearConv", [(1, 2, 4), (), (), (3, 2, 1)], [(1, 3, 4)], {}, 3 * 4 * 2, 0),
        # Each of the 25 input positions is spread over a kernel of 3 x 3 for each of 8 output channels.
        ("ConvTranspose", [(1, 4, 5, 5), (4, 8, 3, 3)], [(1, 8, 11, 11)], {}, 4 * 25 * 8 * 9, 0),
        ("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"equation": "bij,bjk->bik"}, 2 * 3 * 4 * 5, 0),
        ("Einsum", [(6, 2, 3), (6, 3, 4)], [(6, 2, 4)], {"equation": "...ij,...jk"}, 6 * 2 * 3 * 4, 0),
        ("Einsum", [(3, 4)], [(4,)], {"equation": "ij->j"}, 0, 12),
        ("Einsum", [(3, 4)], [(4, 3)], {"equation": "ij->ji"}, 0, 0),
        ("Einsum", [(3,), (4,)], [(3, 4)], {"equation": "i,j->ij"}, 0, 12),
        # 4 gates of the input and of the state; with biases 4 + 4 + 3 + 2 steps and 8 additions.
        ("LSTM", [(5, 2, 6), (1, 32, 6), (1, 32, 8)], [(5, 1, 2, 8)], {}, 5 * 2 * 4 * 8 * (6 + 8), 5 * 2 * 8 * 13),
        ("LSTM", [(5, 2, 6), (2, 32, 6), (2, 32, 8), (2, 64)], [None], {}, 2 * 10 * 32 * 14, 2 * 10 * 8 * (13 + 8)),
        ("GRU", [(5, 2, 6), (1, 24, 6), (1, 24, 8)], [None], {}, 10 * 3 * 8 * 14, 10 * 8 * 11),
        ("RNN", [(5, 2, 6), (1, 8, 6), (1, 8, 8), (1, 16)], [None], {}, 10 * 8 * 14, 10 * 8 * (2 + 2)),
        ("Add", [(2, 1), (1, 3)], [(2, 3)], {}, 0, 6),
        ("Max", [(4,), (4,), (4,)], [(4,)], {}, 0, 8),
        ("ReduceSum", [(4, 5)], [(4,)], {}, 0, 20),
        ("ReduceMean", [(4, 5)], [(4,)], {}, 0, 20 + 4),
        ("Softmax", [(4, 5)], [(4, 5)], {}, 0, 20 * 5),
        ("LayerNormalization", [(4, 5), (5,), (5,)], [(4, 5)], {}, 0, 20 * 7),
        ("LayerNormalization", [(4, 5), (5,)], [(4, 5)], {}, 0, 20 * 6),
        ("BatchNormalization", [(2, 3, 4)], [(2, 3, 4)], {}, 0, 24 * 4),
        ("MaxPool", [(1, 2, 8)], [(1, 2, 4)], {"kernel_shape": [3]}, 0, 8 * 3),
        ("Gelu", [(7,)], [(7,)], {}, 0, 7 * 5),
        ("Gelu", [(7,)], [(7,)], {"approximate": "tanh"}, 0, 7 * 9),
        ("Resize", [(1, 2, 4, 4)], [(1, 2, 8, 8)], {"mode": "nearest"}, 0, 0),
        ("Resize", [(1, 2, 4, 4)], [(1, 2, 8, 8)], {"mode": "linear"}, 0, 2 * 2 * 64 * 4),
        ("Transpose", [(2, 3)], [(3, 2)], {}, 0, 0),
    ],
)
def test_operator_counts_what_its_definition_computes(
    op: str, inputs: Shapes, outputs: Shapes, attributes: dict[str, Any], macs: int, other: int
) -> None:
    assert count(op, inputs, outputs, **attributes) == (macs, other)


def test_attention_counts_scores_weighted_values_and_softmax() -> None:
    # Batch 2, 4 heads, 7 queries, 9 keys, heads of 8.
    scores = 2 * 4 * 7 * 9
    expected = (scores * (8 + 8), scores * 6)
    assert count("Attention", [(2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8)], [None]) == expected
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    assert count("Attention", [(2, 7, 32), (2, 9, 32), (2, 9, 32)], [None], **heads) == expected
    past = [(2, 4, 7, 8), (2, 4, 1, 8), (2, 4, 1, 8), None, (2, 4, 8, 8), (2, 4, 8, 8)]
    assert count("Attention", past, [None]) == expected
    # A mask is one addition for each score.
    masked = [(2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8), (7, 9)]
    assert count("Attention", masked, [None]) == (scores * 16, scores * 7)


def test_attention_of_onnxruntime_counts_its_projections() -> None:
    macs, _ = count("Attention", [(2, 7, 32), (32, 96), (96,)], [(2, 7, 32)], domain="com.microsoft", num_heads=4)
    assert macs == 2 * 7 * 32 * 96 + 2 * 4 * 7 * 7 * (8 + 8)
    inputs = [(2, 7, 32), (2, 9, 32), (2, 9, 32)]
    macs, _ = count("MultiHeadAttention", inputs, [(2, 7, 32)], domain="com.microsoft", num_heads=4)
    assert macs == 2 * 4 * 7 * 9 * (8 + 8)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes"),
    [
        ("MatMul", [None, (8, 4)], [(2, 4)], {}),
        ("MatMul", [()], [()], {}),
        ("Conv", [(1, 2, 3)], [(1, 2, 3)], {}),
        ("LSTM", [(5, 6), (1, 32, 6), (1, 32, 8)], [None], {}),
        ("Attention", [(2, 7, 32), (2, 7, 32), (2, 7, 32)], [None], {}),
        ("Einsum", [(2, 3)], [(2,)], {"equation": "ijk->i"}),
        ("Einsum", [(2, 3)], [(2,)], {"equation": "i,j->ij"}),
        ("Add", [(2,), (2,)], [None], {}),
    ],
)
def test_shape_that_is_missing_or_of_another_rank_is_not_guessed(
    op: str, inputs: Shapes, outputs: Shapes, attributes: dict[str, Any]
) -> None:
    with pytest.raises(UnknownShapeError):
        count(op, inputs, outputs, **attributes)


def test_every_operator_of_the_table_is_one_of_onnx_and_few_are_missing() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    counted = {name for name in known if cost_of(helper.make_node(name, [], [])) is not None}
    assert {"MatMul", "If", "TopK"} <= known
    assert "TopK" not in counted
    assert len(known - counted) < 40
    assert cost_of(helper.make_node("MatMul", [], [], domain="somebody.else")) is None
