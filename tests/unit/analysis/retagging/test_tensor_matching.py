"""Tensors of two graphs without common names are matched by value and data flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from modelexport.analysis.retagging.matching_by_value import fingerprint_tensors
from modelexport.analysis.retagging.tensor_matching import match_tensors
from modelexport.ort.prepared_model import prepared
from modelexport.ort.runner import Runner

Match = Callable[[str, str], dict[str, str]]

_HEAD = '<ir_version: 10, opset_import: ["": 20]> g (float[2, 3] {x}) => (float {y})'
_INPUT = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as shared:
        yield shared


@pytest.fixture
def match(runner: Runner) -> Match:
    """The pairs of two graphs, the second one's names first; inputs are ``x`` and ``X``, results ``y`` and ``Y``."""

    def run(first: str, second: str) -> dict[str, str]:
        models = []
        for names, text in ((("x", "y"), first), (("X", "Y"), second)):
            head = _HEAD.format(x=names[0], y=names[1])
            model = ir.from_proto(onnx.parser.parse_model(head + text))
            with prepared(model) as ready:
                models.append((model, fingerprint_tensors(runner, model, ready, {names[0]: _INPUT})))
        (one, before), (other, after) = models
        found = match_tensors(one, before, other, after, [(one.graph.inputs[0], other.graph.inputs[0])])
        assert len(set(found.values())) == len(found)
        return {str(own.name): str(original.name) for own, original in found.items()}

    return run


def test_distinctive_tensors_match_even_if_their_producers_differ(match: Match) -> None:
    found = match(
        "<float[3] w = {0.5, -1.25, 2.0}> { a = Mul(x, w) b = Mul(a, w) y = Exp(b) }",
        "<float[3] W = {0.25, 1.5625, 4.0}> { B = Mul(X, W) Y = Exp(B) }",
    )
    assert found == {"X": "x", "B": "b", "Y": "y"}


def test_same_structure_with_other_numbers_is_not_the_same(match: Match) -> None:
    found = match(
        "<float[3] w = {0.5, -1.25, 2.0}> { a = Mul(x, w) y = Exp(a) }",
        "<float[3] W = {0.75, 1.5, -2.0}> { A = Mul(X, W) Y = Exp(A) }",
    )
    assert found == {"X": "x"}


def test_equal_constants_are_distinguished_by_their_consumers(match: Match) -> None:
    found = match(
        "<float p = {2.0}, float q = {2.0}> { a = Mul(x, p) b = Pow(x, q) y = Sub(a, b) }",
        "<float Q = {2.0}, float P = {2.0}> { B = Pow(X, Q) A = Mul(X, P) Y = Sub(A, B) }",
    )
    assert (found["P"], found["Q"]) == ("p", "q")


def test_masks_are_matched_by_their_inputs(match: Match) -> None:
    """The threshold was computed before and is given now, so that only the way from the input tells."""
    found = match(
        "<float s = {0.5}> { c = Sub(s, s) m = Greater(x, c) k = Not(m) y = Where(k, x, c) }",
        "<float C = {0.0}> { M = Greater(X, C) K = Not(M) Z = Cast<to = 1>(K) Y = Mul(X, Z) }",
    )
    assert (found["M"], found["K"]) == ("m", "k")


def test_same_operation_on_other_constants_is_another_even_where_results_are_equal(match: Match) -> None:
    found = match(
        "<float p = {-90.0}, float q = {-80.0}> { a = Max(x, p) b = Max(x, q) y = Mul(a, b) }",
        "<float P = {-90.0}, float Q = {-80.0}> { A = Max(X, P) B = Max(X, Q) Y = Mul(B, A) }",
    )
    assert (found["A"], found["B"]) == ("a", "b")


def test_equal_tensors_are_matched_in_order_if_nothing_else_distinguishes_them(match: Match) -> None:
    found = match(
        "{ a = Exp(x) b = Exp(x) y = Add(a, b) }",
        "{ A = Exp(X) B = Exp(X) Y = Sum(A, B) }",
    )
    assert (found["A"], found["B"]) == ("a", "b")


def test_twins_of_which_one_is_gone_are_left_open_or_the_first(match: Match) -> None:
    found = match("{ a = Exp(x) b = Exp(x) y = Add(a, b) }", "{ A = Exp(X) Y = Add(A, A) }")
    assert found["A"] in ("a", "b")


def test_tensors_match_by_operator_if_a_reshape_was_moved(match: Match) -> None:
    found = match(
        "<float[3] w = {0.5, -1.25, 2.0}, int64[1] n = {0}> { a = Mul(x, w) b = Unsqueeze(a, n) y = Exp(b) }",
        "<float[3] W = {0.5, -1.25, 2.0}, int64[1] N = {0}> { R = Unsqueeze(X, N) A = Mul(R, W) Y = Exp(A) }",
    )
    assert (found["A"], found["Y"]) == ("a", "y")
    assert "b" not in found.values()


def test_tensors_match_by_shape_if_the_operator_differs(match: Match) -> None:
    found = match(
        "<float[3] w = {0.5, -1.25, 2.0}> { a = Add(x, w) y = Relu(a) }",
        "<float[3] W = {0.5, -1.25, 2.0}, int64[1] N = {0}, float Z = {0.0}>"
        "{ R = Unsqueeze(X, N) S = Sum(R, W) A = Squeeze(S, N) Y = Max(A, Z) }",
    )
    assert found["A"] == "a"
    assert "S" not in found


def test_first_of_several_equal_tensors_matches_if_no_ops_were_removed(match: Match) -> None:
    found = match(
        "<float[3] w = {0.5, -1.25, 2.0}> { a = Add(x, w) b = Cast<to = 1>(a) y = Relu(b) }",
        "<float[3] W = {0.5, -1.25, 2.0}, float Z = {0.0}> { A = Sum(X, W) Y = Max(A, Z) }",
    )
    assert found["A"] == "a"


def test_subgraphs_are_followed_although_their_run_is_not_seen(match: Match) -> None:
    body = "If ({c}) <then_branch = t () => (float {p}) {{ {p0} = Exp({x}) {p} = Neg({p0}) }}, "
    body += "else_branch = e () => (float {q}) {{ {q} = Exp({x}) }}>"
    first = body.format(c="c", p="p", p0="p0", q="q", x="x")
    second = body.format(c="C", p="P", p0="P0", q="Q", x="X")
    found = match(
        f"<float s = {{0.0}}> {{ m = ReduceMax<keepdims = 0>(x) c = Greater(m, s) y = {first} }}",
        f"<float S = {{0.0}}> {{ M = ReduceMax<keepdims = 0>(X) C = Greater(M, S) Y = {second} }}",
    )
    assert (found["P"], found["P0"], found["Q"]) == ("p", "p0", "q")
