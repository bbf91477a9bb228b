"""Bodies run as models of their own: both branches, the last round of a loop, bodies in bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from modelexport.errors import InputError
from modelexport.runtime.bodies import run_bodies

Found = dict[tuple[str, str], np.ndarray]


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> list[Any]:
    wanted = onnx.ModelProto()
    wanted.CopyFrom(model)
    del wanted.graph.output[:]
    wanted.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(wanted.SerializeToString(), options, ["CPUExecutionProvider"])
        taken = {value.name for value in session.get_inputs()}
        return session.run(list(names), {name: value for name, value in feeds.items() if name in taken})
    except Exception as error:
        raise InputError(str(error)) from error


def bodies_of(text: str, **feeds: Any) -> Found:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    onnx.checker.check_model(model)
    before = model.SerializeToString()
    found: Found = {}
    run_bodies(model, feeds, run, lambda way, name, value: found.update({(way, name): value}))
    assert model.SerializeToString() == before
    return found


X = np.array([1, 2], np.float32)


def test_both_branches_run_on_what_they_read_from_around_them() -> None:
    found = bodies_of(
        """
        g (float[2] x) => (float[2] y) <float[2] w = {10, 20}> {
            a = Neg(x)
            s = ReduceSum<keepdims=0>(x)
            zero = Constant<value = float {0}>()
            c = Greater(s, zero)
            y = If(c) <
                then_branch = t () => (float[2] p) { p = Mul(a, w) },
                else_branch = e () => (float[2] r) <float[2] v = {1, 1}> { q = Add(x, v)  r = Abs(q) }
            >
        }
        """,
        x=X,
    )
    assert {key: value.tolist() for key, value in found.items()} == {
        ("y/then_branch/", "p"): [-10, -40],
        ("y/else_branch/", "q"): [2, 3],
        ("y/else_branch/", "r"): [2, 3],
    }


def test_loop_shows_its_last_round_and_a_body_in_it() -> None:
    found = bodies_of(
        """
        g (float[2] x) => (float[2] y) {
            n = Constant<value = int64 {3}>()
            t = Constant<value = bool {1}>()
            y = Loop(n, t, x) <body = b (int64 i, bool c, float[2] z) => (bool d, float[2] u, float[2] k) {
                d = Identity(c)
                u = Add(z, x)
                k = If(c) <
                    then_branch = t () => (float[2] p) { p = Mul(u, x) },
                    else_branch = e () => (float[2] q) { q = Neg(z) }
                >
            }>
        }
        """,
        x=X,
    )
    assert {key: value.tolist() for key, value in found.items()} == {
        ("y/body/", "i"): 2,
        ("y/body/", "c"): True,
        ("y/body/", "z"): [3, 6],
        ("y/body/", "d"): True,
        ("y/body/", "u"): [4, 8],
        ("y/body/", "k"): [4, 16],
        ("y/body/k/then_branch/", "p"): [4, 16],
        ("y/body/k/else_branch/", "q"): [-3, -6],
    }


@pytest.mark.parametrize("extra", ["", ", scan_output_axes = [0], scan_output_directions = [0]"])
def test_scan_shows_the_slices_of_its_last_round(extra: str) -> None:
    found = bodies_of(
        f"""
        g (float[2] x, float[3, 2] rows) => (float[2] y, float[3, 2] z) {{
            y, z = Scan(x, rows) <num_scan_inputs = 1{extra},
                body = b (float[2] c, float[2] r) => (float[2] d, float[2] e) {{ d = Add(c, r)  e = Neg(d) }}>
        }}
        """,
        x=X,
        rows=np.arange(6, dtype=np.float32).reshape(3, 2),
    )
    assert {name: value.tolist() for (_, name), value in found.items()} == {
        "c": [3, 6],
        "r": [4, 5],
        "d": [7, 11],
        "e": [-7, -11],
    }


def test_body_that_cannot_run_by_itself_is_left_out() -> None:
    found = bodies_of(
        """
        g (float[2] x, bool c) => (float[N] y) <int64[1] big = {7}> {
            y = If(c) <
                then_branch = t () => (float[2] p) { p = Neg(x) },
                else_branch = e () => (float[7] q) { q = Reshape(x, big) }
            >
        }
        """,
        x=X,
        c=np.array(True),
    )
    assert {key: value.tolist() for key, value in found.items()} == {("y/then_branch/", "p"): [-1, -2]}


def test_loops_that_call_what_they_are_handed_alike_are_told_apart() -> None:
    found = bodies_of(
        """
        g (float[2] x) => (float[2] v, float[2] w) {
            n = Constant<value = int64 {2}>()
            t = Constant<value = bool {1}>()
            v = Loop(n, t, x) <body = b (int64 i, bool c, float[2] z) => (bool d, float[2] u) {
                d = Identity(c)
                u = Add(z, x)
            }>
            w = Loop(n, t, v) <body = b (int64 i, bool c, float[2] z) => (bool d, float[2] u) {
                d = Identity(c)
                u = Mul(z, x)
            }>
        }
        """,
        x=X,
    )
    assert found["v/body/", "z"].tolist() == [2, 4]
    assert found["w/body/", "z"].tolist() == [3, 12]


def test_loop_that_goes_no_round_shows_nothing() -> None:
    found = bodies_of(
        """
        g (float[2] x) => (float[2] y) {
            n = Constant<value = int64 {0}>()
            t = Constant<value = bool {1}>()
            y = Loop(n, t, x) <body = b (int64 i, bool c, float[2] z) => (bool d, float[2] u) {
                d = Identity(c)
                u = Add(z, x)
            }>
        }
        """,
        x=X,
    )
    assert found == {}
