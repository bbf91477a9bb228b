"""The hash of a graph: the same for files that compute the same, and another for any change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.support.protos import node, proto, saved_and_loaded, subgraph

from modelexport.graph.digest import SMALL_TENSOR_BYTES, graph_hash

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


def test_hash_is_changed_by_the_output_of_a_subgraph() -> None:
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
