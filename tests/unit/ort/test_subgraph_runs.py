"""Subgraphs run as models of their own: both branches, the last iteration of a loop, subgraphs in subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from modelexport.ort.prepared_model import prepared
from modelexport.ort.runner import Runner
from modelexport.ort.subgraph_runs import run_subgraphs

Found = dict[tuple[str, str], np.ndarray]


SubgraphValues = Callable[..., Found]


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18, "local" : 1]>\n{text}')


@pytest.fixture(scope="module")
def subgraph_values() -> Iterator[SubgraphValues]:
    with Runner() as runner:

        def run(model: str | onnx.ModelProto, **feeds: Any) -> Found:
            if isinstance(model, str):
                model = parse(model)
            onnx.checker.check_model(model)
            found: Found = {}
            with prepared(ir.from_proto(model)) as ready:
                before = ready.proto.SerializeToString()
                run_subgraphs(runner, ready, feeds, lambda path, name, value: found.update({(path, name): value}))
                assert ready.proto.SerializeToString() == before
            return found

        yield run


X = np.array([1, 2], np.float32)


def test_both_branches_run_on_the_tensors_they_capture(subgraph_values: SubgraphValues) -> None:
    found = subgraph_values(
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


def test_loop_shows_its_last_iteration_and_a_subgraph_in_it(subgraph_values: SubgraphValues) -> None:
    found = subgraph_values(
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
def test_scan_shows_the_slices_of_its_last_iteration(subgraph_values: SubgraphValues, extra: str) -> None:
    found = subgraph_values(
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


def test_subgraph_that_cannot_run_by_itself_is_left_out(subgraph_values: SubgraphValues) -> None:
    found = subgraph_values(
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


def test_loops_whose_inputs_have_the_same_names_are_distinguished(subgraph_values: SubgraphValues) -> None:
    found = subgraph_values(
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


def test_loop_without_an_iteration_shows_nothing(subgraph_values: SubgraphValues) -> None:
    found = subgraph_values(
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


def test_path_of_a_subgraph_is_that_of_node_identities_where_names_collide(subgraph_values: SubgraphValues) -> None:
    """The second If is named like the node in a branch of the first: its identity ends in ``#2``."""
    found = subgraph_values(
        """
        g (float[2] x, bool c) => (float[2] y, float[2] "y/then_branch/p") {
            y = If(c) <
                then_branch = t () => (float[2] p) {
                    p = If(c) <
                        then_branch = tt () => (float[2] q) { q = Neg(x) },
                        else_branch = te () => (float[2] r) { r = Abs(x) }
                    >
                },
                else_branch = e () => (float[2] s) { s = Identity(x) }
            >
            "y/then_branch/p" = If(c) <
                then_branch = u () => (float[2] q) { q = Add(x, x) },
                else_branch = v () => (float[2] r) { r = Mul(x, x) }
            >
        }
        """,
        x=X,
        c=np.array(True),
    )
    assert found["y/then_branch/p/then_branch/", "q"].tolist() == [-1, -2]
    assert found["y/then_branch/p#2/then_branch/", "q"].tolist() == [2, 4]


def test_subgraphs_in_a_list_of_graphs_run_each_under_its_position(subgraph_values: SubgraphValues) -> None:
    model = parse(
        """
        g (float[2] x) => (float[2] y) { y = local.choose (x) }
        <domain: "local", opset_import: ["" : 18]>
        choose <branches> (v) => (w) { w = Identity(v) }
        """
    )
    branches = model.graph.node[0].attribute.add(name="branches", type=onnx.AttributeProto.GRAPHS)
    for text in ("p () => (float[2] q) { q = Mul(x, x) }", "r () => (float[2] s) { s = Add(x, x) }"):
        branches.graphs.append(onnx.parser.parse_graph(text))
    assert {key: value.tolist() for key, value in subgraph_values(model, x=X).items()} == {
        ("y/branches.0/", "q"): [1, 4],
        ("y/branches.1/", "s"): [2, 4],
    }
