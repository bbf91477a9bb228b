"""Projection of owners onto a rewritten graph, independent of operator names."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import ROOT_CALL, CallId, CallTree, ModuleCall
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.ownership import Projection, project

A, B, C = CallId("a"), CallId("b"), CallId("c")
CALLS = CallTree({ROOT_CALL: ModuleCall(""), **{c: ModuleCall(c.path, 0, ROOT_CALL) for c in (A, B, C)}})


class Sketch:
    """A graph, node by node, by tensor names; each node with its call where one is given."""

    def __init__(self) -> None:
        self._values = {"x": ir.Value(name="x"), "": None}
        self._nodes: list[ir.Node] = []
        self._initializers: list[ir.Value] = []
        self.owners: dict[ir.Node, Attribution] = {}
        self.node: dict[str, ir.Node] = {}

    def add(self, operation: str, inputs: str, output: str, call: CallId | None = None, **attributes: int) -> Sketch:
        read = [self._values[name] for name in inputs.split()]
        made = [ir.Value(name=name) for name in output.split()]
        given = [ir.AttrInt64(name, number) for name, number in attributes.items()]
        node = ir.Node("any", operation, read, given, outputs=made)
        self._nodes.append(node)
        for value in made:
            self._values[value.name or ""] = value
            self.node[value.name or ""] = node
        if call is not None:
            self.owners[node] = recorded_by_exporter(call)
        return self

    def weight(self, name: str, content: float = 0.0, size: int = 1000) -> Sketch:
        value = ir.Value(name=name, const_value=ir.tensor(np.full(size, content, dtype=np.float32), name=name))
        self._values[name] = value
        self._initializers.append(value)
        return self

    def model(self, *outputs: str) -> ir.Model:
        x = self._values["x"]
        assert x is not None
        returned = [value for name in outputs if (value := self._values[name]) is not None]
        graph = ir.Graph([x], returned, nodes=self._nodes, initializers=self._initializers)
        return ir.Model(graph, ir_version=10)


def projected(first: Sketch, rewritten: Sketch, *outputs: str) -> tuple[dict[str, Attribution], Projection]:
    projection = project(first.model(*outputs), first.owners, rewritten.model(*outputs), CALLS)
    return {name: projection.attributions[node] for name, node in rewritten.node.items()}, projection


def test_owner_of_a_fused_node_computes_its_output_and_the_others_are_contributors() -> None:
    first = Sketch().weight("w").weight("s").add("M", "x w", "m", A).add("N", "m s", "y", B)
    found, _ = projected(first, Sketch().weight("w2").add("M", "x w2", "y"), "y")
    assert (found["y"].owner, found["y"].contributors, found["y"].kind) == (B, (A,), Kind.FUSED)


def test_equal_nodes_merged_into_one_name_all_their_calls() -> None:
    first = Sketch().add("Mask", "x", "m1", A).add("Mask", "x", "m2", B).add("Use", "x m1", "y", A)
    first.add("Use", "y m2", "z", B)
    rewritten = Sketch().add("Mask", "x", "m1").add("Use", "x m1", "y").add("Use", "y m1", "z")
    found, projection = projected(first, rewritten, "z")
    assert (found["m1"].owner, found["m1"].contributors, found["m1"].kind) == (A, (B,), Kind.MERGED)
    assert found["z"].kind is Kind.EXACT
    assert projection.values.tensor("m2") == "m1"


def test_all_nodes_of_merged_chains_name_both_calls() -> None:
    first = Sketch().add("P", "x", "p1", A).add("Q", "p1", "q1", A).add("P", "x", "p2", B).add("Q", "p2", "q2", B)
    first.add("R", "q1 q2", "y", C)
    found, _ = projected(first, Sketch().add("P", "x", "p1").add("Q", "p1", "q1").add("R", "q1 q1", "y"), "y")
    assert found["q1"].contributors == (B,)
    assert found["y"].owner == C


def test_nodes_name_both_calls_if_they_are_equal_only_after_constant_folding() -> None:
    first = Sketch().add("Size", "x", "s1", A).add("Grow", "x s1", "g1", A).add("Use", "g1", "u1", A)
    first.add("Shift", "x", "h", B).add("Size", "h", "s2", B).add("Grow", "x s2", "g2", B).add("Use", "g2", "u2", B)
    first.add("Lay", "x u1", "y", A).add("Lay", "h u2", "z", B)
    rewritten = Sketch().weight("s1").add("Grow", "x s1", "g1").add("Use", "g1", "u1").add("Shift", "x", "h")
    found, _ = projected(first, rewritten.add("Lay", "x u1", "y").add("Lay", "h u1", "z"), "y", "z")
    for name in ("g1", "u1"):
        assert (found[name].owner, found[name].contributors, found[name].kind) == (A, (B,), Kind.MERGED)
    assert all(found[name].kind is Kind.EXACT for name in "hyz")


def test_removed_no_op_is_not_taken_for_a_merged_node() -> None:
    first = Sketch().add("Do", "x", "h", A).add("Do", "h", "i", B).add("Use", "i", "y", C)
    found, _ = projected(first, Sketch().add("Do", "x", "h").add("Use", "h", "y"), "y")
    assert (found["h"].owner, found["h"].contributors, found["h"].kind) == (A, (), Kind.EXACT)


def test_node_that_got_the_name_of_a_removed_no_op_keeps_its_owner() -> None:
    first = Sketch().weight("w").add("Norm", "x w", "h", A).add("Lay", "h", "y", ROOT_CALL, shape=3)
    found, projection = projected(first, Sketch().weight("w").add("Norm", "x w", "y"), "y")
    assert (found["y"].owner, found["y"].contributors, found["y"].kind) == (A, (), Kind.EXACT)
    assert projection.values.tensor("h") == projection.values.tensor("y") == "y"


def test_weight_that_kept_its_name_with_other_content_does_not_match() -> None:
    first = Sketch().weight("w").weight("s").add("M", "x w", "m", A).add("N", "m s", "y", B)
    found, _ = projected(first, Sketch().weight("w", 2.0).add("M", "x w", "y"), "y")
    assert (found["y"].owner, found["y"].contributors, found["y"].kind) == (B, (A,), Kind.FUSED)


def test_equal_nodes_that_were_not_merged_keep_their_own_calls() -> None:
    sketches = [Sketch().add("Do", "x", "a", A).add("Do", "x", "b", B).add("Use", "a b", "y", C) for _ in range(2)]
    found, projection = projected(*sketches, "y")
    assert (projection.values.tensor("a"), projection.values.tensor("b")) == ("a", "b")
    assert (found["a"].owner, found["b"].owner) == (A, B)


def test_node_fused_into_one_of_its_consumers_makes_its_call_a_contributor() -> None:
    first = Sketch().weight("w").add("Turn", "x", "t", A).add("Pad", "t", "p", A).add("Fold", "p w", "y", B, pads=0)
    first.add("Use", "p y", "z", C)
    rewritten = Sketch().weight("w").add("Turn", "x", "t").add("Pad", "t", "p").add("Fold", "t w", "y", pads=1)
    found, _ = projected(first, rewritten.add("Use", "p y", "z"), "z")
    assert (found["y"].owner, found["y"].contributors, found["y"].kind) == (B, (A,), Kind.FUSED)
    assert (found["p"].kind, found["z"].kind) == (Kind.EXACT, Kind.EXACT)


def test_node_fused_into_a_consumer_and_its_successor_names_three_calls() -> None:
    first = Sketch().weight("w").weight("s").add("Turn", "x", "t", A).add("Pad", "t", "p", A)
    first.add("Fold", "p w", "f", B, pads=0).add("Norm", "f s", "y", C).add("Use", "p y", "z", ROOT_CALL)
    rewritten = Sketch().weight("v").weight("b").add("Turn", "x", "t").add("Pad", "t", "p")
    found, _ = projected(first, rewritten.add("Fold", "t v b", "y", pads=1).add("Use", "p y", "z"), "z")
    assert (found["y"].owner, found["y"].contributors, found["y"].kind) == (C, (A, B), Kind.FUSED)


def test_folded_shape_arithmetic_makes_no_contributor() -> None:
    first = Sketch().add("Size", "x", "s", A).add("Grow", "s", "t", A).add("Shift", "x", "h", B)
    first.add("Lay", "h t", "y", B)
    found, _ = projected(first, Sketch().add("Shift", "x", "h").weight("t").add("Lay", "h t", "y"), "y")
    assert (found["y"].owner, found["y"].kind) == (B, Kind.EXACT)


def test_folded_constants_belong_to_the_calls_that_computed_them() -> None:
    first = Sketch().weight("w").add("Half", "w", "c", A).add("Use", "x c", "y", B)
    found, projection = projected(first, Sketch().weight("c", 1.0).add("Use", "x c", "y"), "y")
    assert (projection.constants["c"].owner, projection.constants["c"].kind) == (A, Kind.FOLDED)
    assert found["y"].owner == B


def test_new_node_that_replaces_several_nodes_of_one_call_belongs_to_that_call() -> None:
    first = Sketch().add("In", "x", "h", A)
    for part in range(3):
        first.add("Slice", "h", f"s{part}", B, part=part).add("Use", f"s{part}", f"u{part}", C, part=part)
    first.add("Join", "u0 u1 u2", "y", C)
    rewritten = Sketch().add("In", "x", "h").add("Split", "h", "n0 n1 n2")
    for part in range(3):
        rewritten.add("Use", f"n{part}", f"u{part}", part=part)
    found, _ = projected(first, rewritten.add("Join", "u0 u1 u2", "y"), "y")
    assert found["n0"].owner == B


def test_new_node_that_computes_a_weight_belongs_to_the_consumers_of_the_weight() -> None:
    first = Sketch().weight("b").add("M", "x b", "m", A).add("N", "m", "y", B)
    rewritten = Sketch().weight("packed").add("Unpack", "packed", "b").add("MN", "x b", "y")
    found, _ = projected(first, rewritten, "y")
    assert (found["b"].owner, found["b"].kind) == (A, Kind.INFERRED)
    assert found["y"].owner == B


def test_contributors_are_kept_when_a_fused_node_is_fused_again() -> None:
    first = Sketch().weight("w").add("M", "x w", "m", A).add("N", "m", "y", B)
    first.owners[first.node["m"]] = Attribution(A, Kind.FUSED, 0.95, "fused before", (C,))
    found, _ = projected(first, Sketch().weight("w").add("MN", "x w", "y"), "y")
    assert found["y"].contributors == (A, C)


def test_owners_do_not_depend_on_operator_names() -> None:
    def build(named: Callable[[str], str]) -> tuple[Sketch, Sketch]:
        first = Sketch().weight("w").add(named("M"), "x w", "m", A).add(named("N"), "m", "n", B)
        first.add(named("K"), "x", "k1", A).add(named("K"), "x", "k2", C).add(named("J"), "n k1 k2", "y", C)
        rewritten = Sketch().weight("w").add(named("MN"), "x w", "n").add(named("K"), "x", "k1")
        return first, rewritten.add(named("J"), "n k1 k1", "y")

    plain, _ = projected(*build(lambda name: name), "y")
    other, _ = projected(*build(lambda name: f"Conv{name[::-1]}"), "y")
    assert plain == other
    assert plain["n"].contributors == (A,)


def _work(build: Callable[[int], tuple[Sketch, Sketch]], size: int) -> int:
    """The number of function calls of a projection: unlike time, it does not depend on the machine."""
    first, rewritten = build(size)
    before, after = first.model("y"), rewritten.model("y")
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event.endswith("call")

    sys.setprofile(counted)
    try:
        project(before, first.owners, after, CALLS)
    finally:
        sys.setprofile(None)
    return count


def _overlapping_regions(size: int) -> tuple[Sketch, Sketch]:
    """Many outputs, each computed from the input; in the original graph one chain computes all of them."""
    first, rewritten, last = Sketch(), Sketch(), "x"
    for n in range(size):
        first.add("Step", last, f"c{n}", A, n=n).add("Take", f"c{n}", f"t{n}", B, n=n)
        rewritten.add("All", "x", f"t{n}", n=n)
        last = f"c{n}"
    names = " ".join(f"t{n}" for n in range(size))
    return first.add("Join", names, "y", C), rewritten.add("Join", names, "y")


def _new_names_everywhere(size: int) -> tuple[Sketch, Sketch]:
    first, rewritten, before, after = Sketch(), Sketch(), "x", "x"
    for n in range(size):
        first.add("Step", before, f"c{n}", A, n=n)
        rewritten.add("Other", after, f"d{n}", n=n)
        before, after = f"c{n}", f"d{n}"
    return first.add("End", before, "y", B), rewritten.add("End", after, "y")


def _all_equal(size: int) -> tuple[Sketch, Sketch]:
    """Many equal nodes, of which half were merged into others."""
    first, rewritten = Sketch(), Sketch()
    for n in range(size):
        first.add("Same", "x", f"s{n}", A if n % 2 else B)
        if n % 2:
            rewritten.add("Same", "x", f"s{n}")
    kept = [f"s{n if n % 2 else n + 1}" for n in range(size - 1)]
    every = [f"s{n}" for n in range(size - 1)]
    return first.add("Join", " ".join(every), "y", C), rewritten.add("Join", " ".join(kept), "y")


@pytest.mark.parametrize("build", [_overlapping_regions, _new_names_everywhere, _all_equal])
def test_run_time_is_linear_for_graphs_with_overlapping_regions(
    build: Callable[[int], tuple[Sketch, Sketch]],
) -> None:
    # Four times the nodes; quadratic work would be sixteen times as much.
    assert _work(build, 1200) < 5 * _work(build, 300)
