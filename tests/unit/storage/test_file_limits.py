"""Small files that would take any amount of memory or time are refused by every reader, at once."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.hostile_graphs import DOUBLE, model
from tests.support.model_files import refused

import modelexport
from modelexport.cli.analyze import AnalysisFormat, render
from modelexport.errors import FileFormatError
from modelexport.storage.wire_format import scan

VALUE = helper.make_tensor_value_info


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    memory, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - seconds < 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 400 * 2**10


def save(folder: Path, proto: onnx.ModelProto) -> Path:
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def owned(name: str, count: int) -> onnx.NodeProto:
    """A node with a subgraph of that many nodes."""
    nodes = [helper.make_node("Identity", ["x"], [f"a{number}"]) for number in range(count)]
    return helper.make_node("If", ["x"], [name], then_branch=helper.make_graph(nodes, "g", [], [VALUE("a0", 1, None)]))


def named(path: str, *, tag: str = "/Net", op: str = "Relu", output: str = "y") -> onnx.NodeProto:
    """A node with our `doc_string`."""
    node = helper.make_node(op, ["x"], [output])
    names = {"hierarchy_tags": [tag], "hierarchy_path": tag, "hierarchy_count": 1, "hierarchy_method": "fx"}
    node.doc_string = json.dumps({**names, "module": path, "kind": "exact"})
    return node


def test_long_name_of_an_owning_node_is_not_repeated_for_each_node(tmp_path: Path) -> None:
    refused(save(tmp_path, model(DOUBLE, owned("o" * 1_000_000, 3000))), "ids of more than 67,108,864 characters")


def test_long_name_of_a_function_is_not_repeated_for_each_node(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], [f"a{number}"]) for number in range(3000)]
    long = helper.make_function("local", "f" * 1_000_000, ["x"], ["a0"], nodes, [helper.make_opsetid("", 20)])
    refused(save(tmp_path, model(DOUBLE, functions=[long])), "ids of more than")


def test_subgraphs_with_ordinary_names_are_read(tmp_path: Path) -> None:
    path = save(tmp_path, model(DOUBLE, owned("encoder_layer_0_attention_If_3", 3000)))
    assert len(modelexport.read_model(path).nodes) == 3002


@pytest.mark.parametrize("dims", [[2**62] * 250_000, [2**62, 2], [-1, 4]], ids=["axes", "elements", "negative"])
@pytest.mark.parametrize("external", [True, False])
def test_tensor_with_an_impossible_shape_is_refused(tmp_path: Path, dims: list[int], external: bool) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    if external:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.data")
        (tmp_path / "w.data").write_bytes(b"1234")
    proto = model(DOUBLE)
    proto.graph.initializer.append(tensor)
    refused(save(tmp_path, proto), "impossible shape")


def test_paths_that_name_far_more_modules_than_there_are_nodes_are_refused(tmp_path: Path) -> None:
    nodes = [named(f"p{n}." + "a." * 470 + "b", output=f"y{n}") for n in range(400)]
    with pytest.raises(FileFormatError, match="name more than 11,600 modules"):
        modelexport.analyze(save(tmp_path, model(DOUBLE, *nodes)))


def test_tags_with_hundreds_of_segments_take_no_time(tmp_path: Path) -> None:
    nodes = [named("a." * 150 + f"p{n}", tag="/Net" + "/a" * 150, output=f"y{n}") for n in range(1500)]
    assert modelexport.analyze(save(tmp_path, model(DOUBLE, *nodes))).nodes == 1501


def test_names_with_hundreds_of_parts_in_one_family_take_no_memory(tmp_path: Path) -> None:
    nodes = []
    for number in range(3000):
        node = helper.make_node("Relu", ["x"], [f"y{number}"])
        scopes = ["", "a." * 180 + f"p{number}", "relu"]
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
        nodes.append(node)
    assert len(modelexport.analyze(save(tmp_path, model(DOUBLE, *nodes))).modules) == 3000 + 180 + 1


@pytest.mark.parametrize("form", AnalysisFormat)
def test_long_operator_names_are_not_repeated_for_each_module(tmp_path: Path, form: AnalysisFormat) -> None:
    nodes = [named(".".join(["a"] * 400), op="Q" * 1000, output=f"y{n}") for n in range(8)]
    found = modelexport.analyze(save(tmp_path, model(DOUBLE, *nodes)))
    assert len(render(found, form, 1_000_000, limit=0, detailed=True)) < 2_000_000
    nodes[0].op_type += "Q"
    refused(save(tmp_path, model(DOUBLE, *nodes)), "operator name of 1001 characters")


def test_long_module_name_is_not_repeated_for_each_module(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="more than 67,108,864 characters"):
        modelexport.analyze(save(tmp_path, model(DOUBLE, named("m" * 300_000 + ".a" * 400))))


def test_file_of_millions_of_empty_nodes_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    node = bytes([1 << 3 | 2, 0])
    nodes = node * 500_001
    graph = bytes([7 << 3 | 2]) + onnx_varint(len(nodes)) + nodes
    (tmp_path / "model.onnx").write_bytes(graph)
    refused(tmp_path / "model.onnx", "more nodes than the limit of 500000")


def onnx_varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + onnx_varint(value >> 7) if value >= 0x80 else bytes([value])


def test_long_list_of_numbers_in_an_attribute_is_skipped() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], ints=list(range(10**9, 10**9 + 2_000_000)), floats=[0.5] * 500_000)
    node.attribute.append(owned("z", 5).attribute[0])
    data = model(node).SerializeToString()
    started = time.process_time()
    assert scan(data, 100, 8) == (6, 1)
    assert time.process_time() - started < 1


def test_fields_that_are_not_nodes_are_counted_too(tmp_path: Path) -> None:
    types = bytes([13 << 3 | 2, 0]) * 3_000_000
    data = bytes([7 << 3 | 2]) + onnx_varint(len(types)) + types
    with pytest.raises(ValueError, match="more fields than 100 nodes can have"):
        scan(data, 100, 8)


def test_sidecar_of_empty_lists_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, model(named("a")))
    (tmp_path / "model_hierarchy.json").write_bytes(b'{"schema_version":1,"x":[' + b"[]," * 4_000_000 + b"[]]}")
    with pytest.raises(FileFormatError, match="consists of lists"):
        modelexport.read_model(path)


def test_file_truncated_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(DOUBLE)
    proto.graph.initializer.append(helper.make_tensor("w", 1, [2_000_000], bytes(8_000_000), raw=True))
    proto.graph.initializer.append(helper.make_tensor("v", 1, [2], bytes(8), raw=True))
    path = tmp_path / "model.onnx"
    open_file = Path.open

    def truncate(file: Path, *args: object, **kwargs: object) -> object:
        if kwargs.get("mode") != "wb":
            os.truncate(path, 5000)
        return open_file(file, *args, **kwargs)

    monkeypatch.setattr(Path, "open", truncate)
    for reader in (modelexport.read_model, modelexport.load):
        with pytest.raises(FileFormatError, match="cannot be read as an ONNX model"):
            reader(save(tmp_path, proto))
