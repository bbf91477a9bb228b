"""The index over a graph: identities that are unique and stable, and a hash of what is computed."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.support.protos import node, proto, saved_and_loaded, subgraph

from modelexport.graph.digest import graph_hash
from modelexport.graph.node_ids import nodes_with_ids, proto_nodes_with_ids

# Protobuf reads no message that is nested deeper than 100; a subgraph is three messages below its node.
DEEPEST_FILE = 32
DEEPEST_GRAPH = 2000


def identities(model: onnx.ModelProto | ir.Model) -> list[str]:
    if isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    found = nodes_with_ids(model)
    names = [identity for identity, _ in found]
    assert len(set(names)) == len(names)
    assert len({id(each) for _, each in found}) == len(found)
    return names


# --- identities ------------------------------------------------------------------------------------------------


def test_node_is_known_by_its_first_named_output() -> None:
    model = proto(
        [
            node("Split", ["x"], ["first", "second"]),
            node("Skip", ["x"], ["", "only_second"]),
            helper.make_node("Add", ["first", "w"], ["y"], name="a name that does not count"),
        ]
    )
    assert identities(model) == ["first", "only_second", "y"]


def test_node_without_a_named_output_is_known_by_its_position() -> None:
    model = proto([node("Sink", ["x"], []), node("Relu", ["x"], ["y"]), node("Sink", ["y"], ["", ""])])
    assert identities(model) == ["#0", "y", "#2"]


def test_output_that_is_named_like_a_position_or_copy_does_not_clash() -> None:
    model = proto([node("Relu", ["x"], ["#1"]), node("Sink", ["x"], []), node("Relu", ["#1"], ["y"])])
    assert identities(model) == ["#1", "#1#2", "y"]


def test_id_of_a_node_in_a_subgraph_begins_with_the_path_of_owning_nodes() -> None:
    branches = {
        "then_branch": subgraph("t", [node("Relu", ["x"], ["z"])], "z"),
        "else_branch": subgraph("e", [node("Neg", ["x"], ["z"])], "z"),
    }
    model = proto([node("If", ["c"], ["y"], **branches)])
    assert sorted(identities(model)) == ["y", "y/else_branch/z", "y/then_branch/z"]
    assert identities(model)[0] == "y"


def test_graphs_in_one_attribute_are_numbered() -> None:
    graphs = [subgraph(f"g{i}", [node("Relu", ["x"], ["z"])], "z") for i in range(3)]
    model = proto([node("Many", ["x"], ["y"], bodies=graphs)])
    assert identities(model) == ["y", "y/bodies.0/z", "y/bodies.1/z", "y/bodies.2/z"]


def test_names_with_slashes_do_not_clash_with_the_path_of_a_subgraph() -> None:
    then = subgraph("t", [node("Relu", ["x"], ["z"])], "z")
    model = proto(
        [
            node("Relu", ["x"], ["y/then_branch/z"]),
            node("If", ["c"], ["y"], then_branch=then, else_branch=subgraph("e", [node("Neg", ["x"], ["/"])], "/")),
        ]
    )
    found = identities(model)
    assert found[:2] == ["y/then_branch/z", "y"]
    assert set(found[2:]) == {"y/then_branch/z#2", "y/else_branch//"}


def test_nodes_of_functions_are_known_by_the_function() -> None:
    opset = [helper.make_opsetid("", 18)]
    functions = [
        helper.make_function("local", "F", ["a"], ["y"], [node("Relu", ["a"], ["y"])], opset),
        helper.make_function("local", "F", ["a"], ["y"], [node("Neg", ["a"], ["y"])], opset, overload="other"),
        helper.make_function("local", "G", ["a"], ["y"], [node("Neg", ["a"], ["y"])], opset),
    ]
    model = proto([node("F", ["x"], ["y"])], functions=functions)
    assert identities(model) == ["y", "local::F/y", "local::F::other/y", "local::G/y"]


def test_order_is_main_graph_with_its_subgraphs_then_functions() -> None:
    inner = node("If", ["c"], ["i"], then_branch=subgraph("t", [node("Relu", ["x"], ["d"])], "d"))
    outer = node("If", ["c"], ["o"], then_branch=subgraph("t", [inner, node("Neg", ["i"], ["n"])], "n"))
    function = helper.make_function(
        "local", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    model = proto([outer, node("F", ["o"], ["y"])], functions=[function])
    way = "o/then_branch"
    assert identities(model) == ["o", f"{way}/i", f"{way}/i/then_branch/d", f"{way}/n", "y", "local::F/b"]


def nested(depth: int) -> ir.Model:
    """A subgraph in a subgraph in a subgraph, each with the same names."""
    graph: ir.Graph | None = None
    for _ in range(depth):
        inner = ir.Node("", "Identity", [], num_outputs=1)
        attributes = [] if graph is None else [ir.AttrGraph("then_branch", graph)]
        choice = ir.Node("", "If", [inner.outputs[0]], attributes=attributes, num_outputs=1)
        inner.outputs[0].name, choice.outputs[0].name = "c", "y"
        graph = ir.Graph([], [choice.outputs[0]], nodes=[inner, choice], opset_imports={"": 18}, name="g")
    assert graph is not None
    return ir.Model(graph, ir_version=10)


def test_deep_nesting_does_not_overflow() -> None:
    found = identities(nested(DEEPEST_GRAPH))
    assert len(found) == 2 * DEEPEST_GRAPH
    assert found[-1] == "y/then_branch/" * (DEEPEST_GRAPH - 1) + "y"
    assert graph_hash(nested(DEEPEST_GRAPH)) != graph_hash(nested(DEEPEST_GRAPH - 1))


def test_deepest_file_that_can_be_read_has_the_same_identities_and_hash(tmp_path: Path) -> None:
    model = nested(DEEPEST_FILE)
    loaded = saved_and_loaded(model, tmp_path)
    assert identities(loaded) == identities(model)
    assert graph_hash(loaded) == graph_hash(model)


# Names that repeat, are missing, or look like the marks that identities are made with.
odd_names = st.sampled_from(
    ["", "a", "a/b", "#0", "#1", "a#2", "y", "then_branch", "y/then_branch/a", "/", "local::F/a"]
)


@st.composite
def odd_graphs(draw: st.DrawFn, depth: int = 2) -> ir.Graph:
    nodes = []
    taken: set[str] = set()
    for _ in range(draw(st.integers(0, 4))):
        attributes = []
        if depth and draw(st.booleans()):
            attributes.append(ir.AttrGraph("then_branch", draw(odd_graphs(depth - 1))))
        if depth and draw(st.booleans()):
            attributes.append(ir.AttrGraphs("a", [draw(odd_graphs(depth - 1)) for _ in range(2)]))
        made = ir.Node("local", "Op", [], attributes=attributes, num_outputs=draw(st.integers(0, 2)))
        for output in made.outputs:
            # Within one graph a name is given once, as ONNX has it; in other graphs again and again.
            name = draw(odd_names)
            output.name = "" if name in taken else name
            taken.add(name)
        nodes.append(made)
    return ir.Graph([], [], nodes=nodes, opset_imports={"": 18, "local": 1}, name="g")


@settings(max_examples=80, deadline=None)
@given(graph=odd_graphs())
def test_identities_of_any_graph_are_unique_and_survive_saving(graph: ir.Graph) -> None:
    model = ir.Model(graph, ir_version=10)
    data = ir.to_proto(model).SerializeToString()
    read, again = (ir.from_proto(onnx.load_from_string(data)) for _ in range(2))
    assert identities(read) == identities(model)
    assert graph_hash(read) == graph_hash(again) == graph_hash(onnx.load_from_string(data))
    # Outputs without a name at the end of a node are not written.
    if all(not each.outputs or each.outputs[-1].name for _, each in nodes_with_ids(model)):
        assert graph_hash(read) == graph_hash(model)


def test_ids_stay_unique_in_linear_time_when_outputs_share_one_name() -> None:
    # In quadratic time this many would take hours.
    model = proto([node("Relu", ["x"], ["y"])] * 200_000 + [node("Relu", ["x"], ["y#3"])])
    ids = [identity for identity, _ in proto_nodes_with_ids(model)]
    assert ids[:3] == ["y", "y#2", "y#3"]
    assert len(set(ids)) == len(ids)
