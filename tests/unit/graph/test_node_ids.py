"""The index over a graph: identities that are unique and stable, and a hash of what is computed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from modelexport.graph.digest import SMALL_TENSOR_BYTES, graph_hash
from modelexport.graph.node_ids import nodes_with_ids, proto_nodes_with_ids

# Protobuf reads no message that is nested deeper than 100; a subgraph is three messages below its node.
DEEPEST_FILE = 32
DEEPEST_GRAPH = 2000


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def node(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    domain = "" if op in ("Relu", "Neg", "Add", "If", "Constant", "LeakyRelu", "Identity") else "local"
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


def subgraph(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output)])


def proto(nodes: list[onnx.NodeProto], *, outputs: tuple[str, ...] = ("y",), **options: object) -> onnx.ModelProto:
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [condition, value("x")], [value(name) for name in outputs], weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **options)


def identities(model: onnx.ModelProto | ir.Model) -> list[str]:
    if isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    found = nodes_with_ids(model)
    names = [identity for identity, _ in found]
    assert len(set(names)) == len(names)
    assert len({id(each) for _, each in found}) == len(found)
    return names


def saved_and_loaded(model: ir.Model, folder: Path) -> ir.Model:
    ir.save(model, folder / "model.onnx")
    return ir.load(folder / "model.onnx")


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


def test_node_in_a_body_is_known_behind_the_way_to_it() -> None:
    branches = {
        "then_branch": subgraph("t", [node("Relu", ["x"], ["z"])], "z"),
        "else_branch": subgraph("e", [node("Neg", ["x"], ["z"])], "z"),
    }
    model = proto([node("If", ["c"], ["y"], **branches)])
    assert sorted(identities(model)) == ["y", "y/else_branch/z", "y/then_branch/z"]
    assert identities(model)[0] == "y"


def test_graphs_in_one_attribute_are_told_apart() -> None:
    graphs = [subgraph(f"g{i}", [node("Relu", ["x"], ["z"])], "z") for i in range(3)]
    model = proto([node("Many", ["x"], ["y"], bodies=graphs)])
    assert identities(model) == ["y", "y/bodies.0/z", "y/bodies.1/z", "y/bodies.2/z"]


def test_names_with_slashes_do_not_clash_with_the_way_to_a_body() -> None:
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


def test_order_is_main_graph_with_bodies_within_then_functions() -> None:
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


# --- the hash --------------------------------------------------------------------------------------------------


def base() -> onnx.ModelProto:
    then = subgraph("t", [node("Relu", ["x"], ["p"]), node("Neg", ["x"], ["q"])], "p")
    otherwise = subgraph("e", [node("Neg", ["x"], ["p"])], "p")
    constant = helper.make_tensor("t", TensorProto.FLOAT, [2], [0.1, -0.0])
    function = helper.make_function(
        "local",
        "F",
        ["a"],
        ["b"],
        [node("LeakyRelu", ["a"], ["b"])],
        [helper.make_opsetid("", 18)],
        attributes=["alpha"],
    )
    return proto(
        [
            node("Constant", [], ["k"], value=constant),
            node("If", ["c"], ["h"], then_branch=then, else_branch=otherwise),
            node("LeakyRelu", ["h"], ["l"], alpha=0.1),
            node(
                "Odd", ["l", "", "w"], ["o", "p"], ints=[1, 2], floats=[0.1, 1e-9], text="ä", texts=["a", "b"], number=3
            ),
            node("Add", ["o", "k"], ["s"]),
            node("F", ["s"], ["y"], alpha=0.5),
        ],
        functions=[function],
    )


def hashed(model: onnx.ModelProto) -> str:
    found = graph_hash(ir.from_proto(model))
    # The file as it lies there, and as onnx_ir writes it.
    assert graph_hash(model) == found
    assert graph_hash(ir.to_proto(ir.from_proto(model))) == found
    return found


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = base()
    before = model.SerializeToString(deterministic=True)
    change(model)
    assert model.SerializeToString(deterministic=True) != before
    return model


def attribute(model: onnx.ModelProto, position: int, name: str) -> onnx.AttributeProto:
    return next(a for a in model.graph.node[position].attribute if a.name == name)


def branch(model: onnx.ModelProto) -> onnx.GraphProto:
    return attribute(model, 1, "then_branch").g


def test_hash_is_the_same_before_saving_and_after_loading(tmp_path: Path) -> None:
    model = ir.from_proto(base())
    assert graph_hash(saved_and_loaded(model, tmp_path)) == graph_hash(model)
    assert graph_hash(onnx.load(tmp_path / "model.onnx")) == graph_hash(model)
    # As programs make attributes: Python floats of 64 bits, numpy's own numbers, tensors in memory.
    made = ir.Node(
        "local",
        "Op",
        [],
        attributes=[
            ir.AttrFloat32("float", 0.1),
            ir.AttrFloat32s("floats", [0.1, float("inf"), float("nan")]),
            ir.AttrInt64s("ints", [np.int64(1), 2]),
            ir.AttrString("text", "ä"),
            ir.AttrTensor("tensor", ir.tensor(np.arange(6, dtype=np.float16).reshape(2, 3))),
            ir.AttrTypeProto("type", ir.TypeAndShape(ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, "n"]))),
        ],
        num_outputs=1,
    )
    made.outputs[0].name = "y"
    graph = ir.Graph([], made.outputs, nodes=[made], opset_imports={"": 18, "local": 1}, name="g")
    built = ir.Model(graph, ir_version=10)
    assert graph_hash(saved_and_loaded(built, tmp_path)) == graph_hash(built)


def test_hash_is_the_same_with_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    model = ir.from_proto(base())
    before = graph_hash(model)
    ir.save(model, tmp_path / "model.onnx", external_data="model.data", size_threshold_bytes=0)
    (tmp_path / "model.data").unlink()
    assert graph_hash(ir.load(tmp_path / "model.onnx")) == before
    assert graph_hash(onnx.load(tmp_path / "model.onnx", load_external_data=False)) == before


SAME: dict[str, Callable[[onnx.ModelProto], object]] = {
    "metadata of the model": lambda m: m.metadata_props.add(key="k", value="v"),
    "metadata of a node": lambda m: m.graph.node[0].metadata_props.add(key="k", value="v"),
    "metadata of a node in a subgraph": lambda m: branch(m).node[0].metadata_props.add(key="k", value="v"),
    "a doc_string": lambda m: setattr(m.graph.node[0], "doc_string", "words"),
    "a doc_string of the model": lambda m: setattr(m, "doc_string", "words"),
    "a node's name": lambda m: setattr(m.graph.node[2], "name", "renamed"),
    "the producer": lambda m: setattr(m, "producer_name", "someone else"),
    "weights": lambda m: m.graph.initializer[0].CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [8.0, 9.0])),
    "the order of attributes": lambda m: m.graph.node[3].attribute.sort(key=lambda a: a.name, reverse=True),
}


@pytest.mark.parametrize("what", SAME)
def test_hash_is_unchanged_by(what: str) -> None:
    assert hashed(changed(SAME[what])) == hashed(base())


def swap_nodes(model: onnx.ModelProto) -> None:
    first, second = copy.deepcopy(model.graph.node[1]), copy.deepcopy(model.graph.node[0])
    model.graph.node[0].CopyFrom(first)
    model.graph.node[1].CopyFrom(second)


DIFFERENT: dict[str, Callable[[onnx.ModelProto], object]] = {
    "an operation": lambda m: setattr(m.graph.node[4], "op_type", "Mul"),
    "a domain": lambda m: setattr(m.graph.node[4], "domain", "local"),
    "an edge": lambda m: m.graph.node[4].input.__setitem__(1, "l"),
    "the order of inputs": lambda m: m.graph.node[4].input.__setitem__(slice(None), ["k", "o"]),
    "the place of a missing input": lambda m: m.graph.node[3].input.__setitem__(slice(None), ["l", "w", ""]),
    "the name of a second output": lambda m: m.graph.node[3].output.__setitem__(1, "q"),
    "one input less": lambda m: m.graph.node[3].input.pop(),
    "a float": lambda m: setattr(attribute(m, 2, "alpha"), "f", 0.2),
    "one of several floats": lambda m: attribute(m, 3, "floats").floats.__setitem__(1, 2e-9),
    "an integer": lambda m: setattr(attribute(m, 3, "number"), "i", 4),
    "one of several integers": lambda m: attribute(m, 3, "ints").ints.append(3),
    "a text": lambda m: setattr(attribute(m, 3, "text"), "s", b"b"),
    "one of several texts": lambda m: attribute(m, 3, "texts").strings.__setitem__(0, b"c"),
    "an attribute less": lambda m: m.graph.node[2].attribute.pop(),
    "a small constant": lambda m: attribute(m, 0, "value").t.float_data.__setitem__(0, 0.5),
    "the sign of a zero": lambda m: attribute(m, 0, "value").t.float_data.__setitem__(1, 0.0),
    "an operation in a subgraph": lambda m: setattr(branch(m).node[0], "op_type", "Abs"),
    "an edge in a subgraph": lambda m: branch(m).node[1].input.__setitem__(0, "p"),
    "an operation in a function": lambda m: setattr(m.functions[0].node[0], "op_type", "Elu"),
    "a function's output": lambda m: m.functions[0].output.__setitem__(0, "a"),
    "the shape of a weight": lambda m: m.graph.initializer[0].CopyFrom(
        helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    ),
    "the type of a weight": lambda m: m.graph.initializer[0].CopyFrom(
        helper.make_tensor("w", TensorProto.DOUBLE, [2], [1.0, 2.0])
    ),
    "an output of the graph": lambda m: setattr(m.graph.output[0], "name", "s"),
    "the opset": lambda m: setattr(m.opset_import[0], "version", 19),
    "the order of nodes": swap_nodes,
    "a node more": lambda m: m.graph.node.append(node("Relu", ["y"], ["z"])),
    "the branches the other way round": lambda m: (
        setattr(attribute(m, 1, "then_branch"), "name", "was_then"),
        setattr(attribute(m, 1, "else_branch"), "name", "then_branch"),
        setattr(attribute(m, 1, "was_then"), "name", "else_branch"),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_hash_is_changed_by(what: str) -> None:
    assert hashed(changed(DIFFERENT[what])) != hashed(base())


def test_hash_is_changed_by_the_output_of_a_body() -> None:
    assert hashed(changed(lambda m: setattr(branch(m).output[0], "name", "q"))) != hashed(base())


def with_constant(content: onnx.TensorProto) -> onnx.ModelProto:
    return proto([node("Constant", [], ["y"], value=content)])


def test_large_constant_counts_by_type_and_shape_alone() -> None:
    size = SMALL_TENSOR_BYTES // 4 + 1

    def filled(number: float, length: int = size) -> str:
        return hashed(with_constant(helper.make_tensor("t", TensorProto.FLOAT, [length], [number] * length)))

    assert filled(1.0) == filled(2.0)
    assert filled(1.0) != filled(1.0, size + 1)
    assert filled(1.0, size - 1) != filled(2.0, size - 1)


def test_constant_of_texts_counts_by_its_content() -> None:
    tensors = (helper.make_tensor("t", TensorProto.STRING, [1], [text]) for text in (b"a", b"b"))
    assert len({hashed(with_constant(tensor)) for tensor in tensors}) == 2


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(
            ir.AttrTensors("t", [ir.tensor(np.ones(2))]),
        ),
        pytest.param(
            ir.AttrFloat32("f", 1e300),
        ),
        ir.AttrFloat32("f", 3.4e38),
    ],
    ids=["tensors", "huge", "largest"],
)
def test_hash_of_a_rare_attribute_is_the_same_after_loading(tmp_path: Path, kept: ir.Attr) -> None:
    made = ir.Node("local", "Op", [], attributes=[kept], num_outputs=1)
    made.outputs[0].name = "y"
    graph = ir.Graph([], made.outputs, nodes=[made], opset_imports={"": 18, "local": 1}, name="g")
    model = ir.Model(graph, ir_version=10)
    assert graph_hash(saved_and_loaded(model, tmp_path)) == graph_hash(model)
    assert graph_hash(onnx.load(tmp_path / "model.onnx")) == graph_hash(model)
