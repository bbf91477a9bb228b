"""Matching of the tensors of two graphs, and the call boundaries that follow from it."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from modelexport.graph.digest import graph_hash
from modelexport.hierarchy.attribution import Attribution
from modelexport.hierarchy.calls import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.hierarchy.modules import TensorInfo
from modelexport.ownership import Projection, project
from modelexport.ownership.no_ops import passed_on_values
from modelexport.ownership.value_correspondence import ValueCorrespondence

A, B = CallId("a"), CallId("b")


def parsed(nodes: str, outputs: str = "float[2,3] y", shapes: str = "") -> ir.Model:
    inputs = "float[2,3] x, float[1,3] m"
    text = f'<ir_version: 10, opset_import: ["": 20, "any": 1]> g ({inputs}) => ({outputs}) {shapes} {{ {nodes} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


def owned(model: ir.Model, **calls: CallId) -> dict[ir.Node, Attribution]:
    return {node: recorded_by_exporter(calls[node.outputs[0].name or ""]) for node in model.graph}


def call_b(**argument: str) -> CallTree:
    """Two calls; the second takes an argument `mask` that is this tensor, or is replaced by it."""
    mask = BoundaryTensor("mask", info=TensorInfo((2, 3), "float32"), **argument)
    calls = (ModuleCall("a", 0, ROOT_CALL), ModuleCall("b", 0, ROOT_CALL, (mask,)))
    return CallTree({call.id: call for call in calls})


def mask_of(projection: Projection) -> tuple[str | None, str | None]:
    found = projection.calls[B].inputs[0]
    return found.tensor, found.stand_in


# --- nodes that pass a value on --------------------------------------------------------------------------------


def test_operators_that_return_their_input_are_found_by_running_them() -> None:
    nodes = "i = Identity(x) d = Dropout(i) s = Squeeze(d) n = Neg(s) q = any.Identity(n) y = Relu(q)"
    model = parsed(nodes)
    passed = {value.name: source.name for value, source in passed_on_values(model).items()}
    assert passed == {"i": "x", "d": "x"}


def test_projection_changes_neither_graph() -> None:
    original = parsed("h = Relu(x) i = Identity(h) y = Tanh(i)")
    rewritten = parsed("h = Relu(x) y = Tanh(h)")
    before = [graph_hash(model) for model in (original, rewritten)]
    project(original, owned(original, h=A, i=B, y=B), rewritten, call_b(tensor="i"))
    assert [graph_hash(model) for model in (original, rewritten)] == before


def test_output_of_a_removed_identity_matches_its_input() -> None:
    original = parsed("h = Relu(x) i = Identity(h) y = Tanh(i)")
    assert ValueCorrespondence(original, parsed("h = Relu(x) y = Tanh(h)")).tensor("i") == "h"
    assert ValueCorrespondence(original, parsed("i = Relu(x) y = Tanh(i)")).tensor("h") == "i"


@pytest.mark.parametrize(("shapes", "found"), [("", None), ("<float[2,3] f>", "f"), ("<float[6] f>", None)])
def test_tensor_of_another_operator_is_matched_only_if_its_rank_is_known(shapes: str, found: str | None) -> None:
    original = parsed("h = Relu(x) y = Reshape(h, m)", shapes="<float[2,3] h>")
    rewritten = parsed("f = any.Flat(x) y = Reshape(f, m)", shapes=shapes)
    assert ValueCorrespondence(original, rewritten).tensor("h") == found


@pytest.mark.parametrize(
    ("operation", "found"),
    [
        ("RandomNormalLike(x)", None),
        ("RandomUniformLike<low = 1.0>(x)", None),
        ("Bernoulli(x)", None),
        ("Dropout(x, half, yes)", None),
        ("Relu(x)", "r"),
    ],
)
def test_second_result_of_an_operation_is_the_first_one_unless_it_draws_random_numbers(
    operation: str, found: str | None
) -> None:
    constants = "half = Constant<value_float = 0.5>() yes = Constant<value = bool {1}>()"
    original = parsed(f"{constants} r = {operation} s = {operation} a = Tanh(r) b = Cos(s) y = Add(a, b)")
    rewritten = parsed(f"{constants} r = {operation} a = Tanh(r) b = any.Cosine(x) y = Add(a, b)")
    values = ValueCorrespondence(original, rewritten)
    assert values.tensor("r") == "r"
    assert values.tensor("s") == found


def test_identity_that_was_not_removed_keeps_its_tensor_and_owner() -> None:
    original, copy = (parsed("h = Relu(x) i = Identity(h) y = Tanh(i)") for _ in range(2))
    projection = project(original, owned(original, h=A, i=B, y=A), copy, call_b(tensor="i"))
    assert mask_of(projection) == ("i", None)
    owners = {node.outputs[0].name: found.owner for node, found in projection.attributions.items()}
    assert owners == {"h": A, "i": B, "y": A}


def test_node_that_got_the_name_of_a_removed_identity_keeps_its_owner() -> None:
    original = parsed("h = Relu(x) i = Identity(h) y = Tanh(i)")
    projection = project(
        original, owned(original, h=A, i=B, y=B), parsed("i = Relu(x) y = Tanh(i)"), call_b(tensor="i")
    )
    owners = {node.outputs[0].name: found.owner for node, found in projection.attributions.items()}
    assert owners == {"i": A, "y": B}


# --- tensors that are not the same -----------------------------------------------------------------------------


def test_tensor_that_kept_its_name_with_another_rank_does_not_match() -> None:
    nodes = "h = Relu(x) y = Tanh(h)"
    original, rewritten = parsed(nodes), parsed(nodes)
    rewritten.graph[0].outputs[0].shape = ir.Shape([6])
    original.graph[0].outputs[0].shape = ir.Shape([2, 3])
    assert ValueCorrespondence(original, rewritten).tensor("h") is None
    original.graph[0].outputs[0].shape = None
    assert ValueCorrespondence(original, rewritten).tensor("h") == "h"


# --- replaced arguments ----------------------------------------------------------------------------------------

EXPANDED = "c = Constant <value_ints=[2, 3]> () e = Expand(m, c) h = Relu(x) y = Add(h, e)"
BROADCAST = "h = Relu(x) y = Add(h, m)"


def test_argument_removed_by_broadcasting_has_a_replacement() -> None:
    original = parsed(EXPANDED)
    owners = owned(original, c=ROOT_CALL, e=ROOT_CALL, h=A, y=B)
    assert mask_of(project(original, owners, parsed(BROADCAST), call_b(tensor="e"))) == (None, "m")


def test_replacement_is_kept_when_the_graph_is_rewritten_again() -> None:
    original, copy = parsed(BROADCAST), parsed(BROADCAST)
    assert mask_of(project(original, owned(original, h=A, y=B), copy, call_b(stand_in="m"))) == (None, "m")
    renamed = parsed("h = Relu(x) k = any.Cast(m) y = Add(h, k)")
    assert mask_of(project(original, owned(original, h=A, y=B), renamed, call_b(stand_in="m"))) == (None, "k")


def test_argument_has_a_replacement_though_other_calls_consume_it_too() -> None:
    nodes = "h = Add(x, m) y = Add(h, m)"
    original, copy = parsed(nodes), parsed(nodes)
    assert mask_of(project(original, owned(original, h=A, y=B), copy, call_b(stand_in="m"))) == (None, "m")


@pytest.mark.parametrize(
    "nodes",
    [
        "h = Relu(x) k = Neg(x) z = any.AddRelu(h, m) y = Mul(z, k)",
        "h = Relu(x) k = Neg(x) z = Mul(h, m) y = Mul(z, k)",
        "h = Relu(x) k = Neg(x) z = Add(k, m) y = Mul(z, k)",
    ],
    ids=["fused", "another operation", "another second input"],
)
def test_argument_has_no_replacement_if_its_consumer_changed(nodes: str) -> None:
    original = parsed("h = Relu(x) k = Neg(x) z = Add(h, m) y = Mul(z, k)")
    owners = owned(original, h=A, k=A, z=B, y=ROOT_CALL)
    assert mask_of(project(original, owners, parsed(nodes), call_b(stand_in="m"))) == (None, None)


def test_argument_has_no_replacement_if_the_call_consumes_that_tensor_itself() -> None:
    original = parsed("c = Constant <value_ints=[2, 3]> () e = Expand(m, c) h = Add(x, m) y = Add(h, e)")
    owners = owned(original, c=ROOT_CALL, e=ROOT_CALL, h=B, y=B)
    rewritten = parsed("h = Add(x, m) y = Add(h, m)")
    assert mask_of(project(original, owners, rewritten, call_b(tensor="e"))) == (None, None)
