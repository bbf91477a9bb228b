"""Tables of a graph: omitted inputs, attributes, names in several scopes, local functions, recovered modules."""

from __future__ import annotations

from pathlib import Path

import onnx
from benchmarks.view_models import write_local_functions
from onnx import TensorProto, helper
from tests.support.scoped_models import saved, scoped

import modelexport
from modelexport.viewing.page_data import NONE, PageData


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def read(nodes: list[onnx.NodeProto], path: Path) -> PageData:
    graph = helper.make_graph(nodes, "main", [value("x")], [value("y")])
    opsets = [helper.make_opsetid("", 20)]
    return modelexport.view(saved(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)).data


def names(data: PageData, tensors: list[int]) -> list[str]:
    return ["" if t == NONE else data.strings[data.tensors.name[t]] for t in tensors]


def test_omitted_input_keeps_the_position_of_those_after_it(tmp_path: Path) -> None:
    data = read([scoped(helper.make_node("Clip", ["x", "", "x"], ["y"]), "clip", "models.Clip")], tmp_path / "m.onnx")
    assert names(data, data.nodes.inputs[0]) == ["x", "", "x"]
    assert names(data, data.nodes.outputs[0]) == ["y"]


def test_stack_trace_that_is_not_text_gives_no_source_line(tmp_path: Path) -> None:
    nodes = [
        scoped(helper.make_node("Relu", ["x"], ["a"]), "a", "models.A"),
        scoped(helper.make_node("Relu", ["a"], ["y"]), "b", "models.B"),
    ]
    for node, name in zip(nodes, ("netXX.py", "good.py"), strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f'File "{name}", line 3, in forward')
    graph = helper.make_graph(nodes, "main", [value("x")], [value("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString().replace(b"netXX.py", b"net\xff\xfe.py"))
    data = modelexport.view(tmp_path / "m.onnx").data
    assert [data.strings[source] for source in data.nodes.source] == ["", "good.py:3"]


def test_attributes_are_texts(tmp_path: Path) -> None:
    constant = helper.make_tensor("c", TensorProto.INT64, [2], [3, 4])
    attributes = {"f": 0.5, "ints": [1, 2], "t": constant, "s": "text", "many": list(range(100))}
    node = scoped(helper.make_node("Custom", ["x"], ["y"], domain="any", **attributes), "a", "models.A")
    data = read([node], tmp_path / "m.onnx")
    flat = [data.strings[text] for text in data.nodes.attributes[0]]
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (found["f"], found["ints"], found["t"], found["s"]) == ("0.5", "[1, 2]", "[3, 4]", "text")
    assert found["many"].startswith("[0, 1, 2,")
    assert found["many"].endswith(", …]")


def test_inner_name_hides_the_outer_one_of_the_same_name(tmp_path: Path) -> None:
    inner = [helper.make_node("Relu", ["x"], ["same"]), helper.make_node("Neg", ["same"], ["out"])]
    branch = helper.make_graph(inner, "branch", [], [value("out")])
    nodes = [
        helper.make_node("Abs", ["x"], ["same"]),
        helper.make_node("If", ["same"], ["y"], then_branch=branch, else_branch=branch),
    ]
    data = read([scoped(node, "part", "models.Part") for node in nodes], tmp_path / "m.onnx")
    producers = [data.tensors.producer[inputs[0]] for inputs in data.nodes.inputs]
    ops = [data.strings[op] for op in data.nodes.op]
    assert [ops[node] if node != NONE else "" for node in producers] == ["", "Abs", "", "Relu", "", "Relu"]
    assert len(set(producers)) == 4


def test_node_leads_to_the_function_that_it_calls(tmp_path: Path) -> None:
    data = modelexport.view(write_local_functions(tmp_path / "m.onnx")).data
    assert [graph.function for graph in data.graphs] == ["", "models::Block"]
    assert data.nodes.function == {0: 1, 1: 1, 2: 1}
    inside = [node for node, graph in enumerate(data.nodes.graph) if graph == 1]
    assert [data.strings[data.nodes.op[node]] for node in inside] == ["MatMul", "Relu"]
    assert names(data, data.graphs[1].inputs) == ["a", "w"]
    assert names(data, data.graphs[1].outputs) == ["b"]


def test_file_of_another_tool_has_the_modules_of_its_scopes_and_notes(tmp_path: Path) -> None:
    data = modelexport.view(write_local_functions(tmp_path / "m.onnx")).data
    assert [data.strings[call] for call in data.calls.id] == ["", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert data.about.origin == "torch metadata"
    assert data.notes[0] == "there is no sidecar m_hierarchy.json"
