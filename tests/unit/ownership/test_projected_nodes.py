"""Owners of nodes whose inputs an optimizer connected to an earlier tensor."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir
import pytest

from modelexport.hierarchy import ROOT_CALL, Attribution, CallId, CallTree, Kind, ModuleCall
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.ownership import project
from modelexport.ownership.value_correspondence import ValueCorrespondence

A, B = CallId("a"), CallId("b")
CALLS = CallTree({ROOT_CALL: ModuleCall(""), **{c: ModuleCall(c.path, 0, ROOT_CALL) for c in (A, B)}})


def parsed(nodes: str) -> ir.Model:
    shapes = "(float[2,3,4] x) => (float[M,N,K] y) <float[2,3,4] h>"
    text = f'<ir_version: 10, opset_import: ["": 20]> g {shapes} {{ {nodes} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


def owner_of_y(original: str, rewritten: str, calls: Sequence[str]) -> Attribution:
    """The attribution of the node that computes y; `calls` has the call of each node of the original graph."""
    before, after = parsed(original), parsed(rewritten)
    owners = {node: recorded_by_exporter(CallId(call)) for node, call in zip(before.graph, calls, strict=True)}
    found = project(before, owners, after, CALLS).attributions
    return next(found[node] for node in after.graph if node.outputs[0].name == "y")


TURN = "Transpose<perm = [0, 2, 1]>"


@pytest.mark.parametrize(
    ("original", "rewritten"),
    [
        pytest.param(f"p = {TURN}(x) q = {TURN}(p) y = {TURN}(q)", f"y = {TURN}(x)", id="two of three cancel out"),
        pytest.param("p = Relu(x) q = Identity(p) y = Relu(q)", "y = Relu(x)", id="idempotent"),
        pytest.param(
            "s = Constant<value_ints = [4, 6]>() p = Reshape(x, s) t = Constant<value_ints = [1, 8, 3]>() "
            "y = Reshape(p, t)",
            "t = Constant<value_ints = [1, 8, 3]>() y = Reshape(x, t)",
            id="the last of two reshapes",
        ),
    ],
)
def test_node_that_does_the_work_of_two_calls_is_fused(original: str, rewritten: str) -> None:
    calls = "aabb" if "Constant" in original else "abb"
    found = owner_of_y(original, rewritten, calls)
    assert (found.owner, found.kind, found.contributors, found.confidence) == (B, Kind.FUSED, (A,), 0.95)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(f"p = {TURN}(h) q = {TURN}(p)", id="transposes"),
        pytest.param(
            "s = Constant<value_ints = [4, 6]>() p = Reshape(h, s) "
            "t = Constant<value_ints = [2, 3, 4]>() q = Reshape(p, t)",
            id="reshapes",
        ),
        pytest.param("s = Constant<value = float {1.0}>() q = Mul(h, s)", id="a product with one"),
    ],
)
def test_node_keeps_its_one_call_where_removed_nodes_of_another_call_cancel_out(between: str) -> None:
    original = f"h = Relu(x) {between} y = Tanh(q)"
    found = owner_of_y(original, "h = Relu(x) y = Tanh(h)", "a" * (original.count("=") - original.count("<") - 1) + "b")
    assert (found.owner, found.kind, found.contributors) == (B, Kind.EXACT, ())


def test_fused_node_has_both_calls_where_its_input_is_renamed() -> None:
    split = "n = Constant<value_int = 2>() s = SplitToSequence<axis = 2>(x, n) i = Constant<value_int = 1>() "
    conv = "w = Constant<value = float[3,3,1] {1,2,3,4,5,6,7,8,9}>() "
    scale = "k = Constant<value = float[3,1] {2,3,4}>() "
    original = f"{split} h = SequenceAt(s, i) {conv} c = Conv(h, w) {scale} y = Mul(c, k)"
    rewritten = f"p, q = Split<axis = 2, num_outputs = 2>(x) {conv} y = Conv(q, w)"
    found = owner_of_y(original, rewritten, ["", "", "", "", "a", "a", "b", "b"])
    assert (found.owner, found.kind, found.contributors) == (B, Kind.FUSED, (A,))


def test_input_of_a_fused_node_is_not_matched_through_a_node_with_other_attributes() -> None:
    original = parsed("p = Sin(x) q = Transpose<perm = [2, 1, 0]>(p) y = Tanh(q)")
    rewritten = parsed(f"r = Cos(x) y = {TURN}(r)")
    assert ValueCorrespondence(original, rewritten).tensor("p") is None
