"""Reading untrusted files: the same through the light reader and `load`; nothing outside the folder is touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.conftest import Exporter
from tests.support.model_files import READERS, external, function, make_model, refused, relu, saved, value

from modelexport.errors import FileFormatError, InputError, ModelExportError
from modelexport.hierarchy.document_codec import decode_document, encode_document
from modelexport.limits import ReadLimits
from modelexport.storage import opened_file
from modelexport.storage.opened_file import load, read_model, read_proto
from modelexport.storage.transaction import sidecar_path
from modelexport.storage.wire_format import scan

# --- what both readers say --------------------------------------------------------------------------------------


@pytest.mark.xdist_group("cond")
@pytest.mark.parametrize("name", ["cond", "shared_block"])
def test_skeleton_has_the_graph_of_the_loaded_file(exported: Exporter, name: str) -> None:
    path = exported(name).path
    light, full = read_model(path), load(path)
    assert light.document == full.document == exported(name).document
    assert light.path == full.path
    assert light.stored == full.stored
    assert [identity for identity, _ in light.nodes] == [node.id for node in exported(name).document.nodes]
    assert light.tag_counts() == full.tag_counts()
    assert light.missing == full.missing == ""


def test_large_weights_have_no_content_in_the_skeleton_and_all_of_it_after_load(tmp_path: Path) -> None:
    content = np.arange(600_000, dtype=np.float32)
    weight = onnx.numpy_helper.from_array(content, "w")
    path = saved(tmp_path, make_model([helper.make_node("Add", ["x", "w"], ["y"])], [weight]))
    light = read_model(path).proto.graph.initializer[0]
    assert (light.name, list(light.dims), light.raw_data) == ("w", [600_000], b"")
    tensor = load(path).model.graph.initializers["w"].const_value
    assert tensor is not None
    assert (tensor.numpy() == content).all()


def test_opened_file_reads_each_part_once_and_rereads_only_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model([relu()], [onnx.numpy_helper.from_array(np.ones(2**19, np.float32), "w")])
    path = saved(tmp_path, model)
    reads: list[bool] = []

    def counting(file: Path, limits: ReadLimits, *, weights: bool) -> onnx.ModelProto:
        reads.append(weights)
        return read_proto(file, limits, weights=weights)

    monkeypatch.setattr(opened_file, "read_proto", counting)
    file = read_model(path)
    assert file.proto is file.proto
    assert file.missing == "there is no sidecar model_hierarchy.json"
    assert not file.stored
    assert [stores.doc_string for stores in file.stores] == [None]
    assert reads == [False]
    weight = file.model.graph.initializers["w"].const_value
    assert (weight.nbytes, weight.dtype, list(weight.shape)) == (2**21, ir.DataType.FLOAT, [2**19])
    assert file.model is file.model
    assert reads == [False]
    assert (weight.numpy() == 1).all()
    assert weight.tobytes() == np.ones(2**19, np.float32).tobytes()
    assert reads == [False, True]
    loaded = load(path)
    assert loaded.proto.graph.initializer[0].raw_data
    assert loaded.model is loaded.model
    assert reads == [False, True, True]


def test_file_that_changes_after_it_was_opened_is_not_mixed_with_its_old_graph(tmp_path: Path) -> None:
    weight = onnx.numpy_helper.from_array(np.ones(2**19, np.float32), "w")
    path = saved(tmp_path, make_model([relu()], [weight]))
    file = read_model(path)
    saved(tmp_path, make_model([relu("x", "z"), relu("z", "y")], [weight]))
    assert len(file.model.graph) == 1
    with pytest.raises(FileFormatError, match="was changed after it was opened"):
        file.model.graph.initializers["w"].const_value.numpy()


@pytest.mark.parametrize("path", [None, 3, b"m.onnx"])
@pytest.mark.parametrize("read", [read_model, load])
def test_path_of_another_type_is_refused(read: Callable[[Any], object], path: object) -> None:
    with pytest.raises(InputError, match="is given by its path, not by"):
        read(path)


@pytest.mark.xdist_group("cond")
def test_sidecar_of_another_graph_is_noticed(tmp_path: Path, exported: Exporter) -> None:
    path = saved(tmp_path, make_model([relu()]))
    sidecar_path(path).write_bytes(encode_document(exported("cond").document))
    for reader in READERS:
        found = reader(path)
        assert found.document is None
        assert "describes another graph" in found.missing


# --- files that are none ----------------------------------------------------------------------------------------


def test_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for reader in READERS:
        for path in (tmp_path, tmp_path / "none.onnx", tmp_path / "pipe.onnx"):
            with pytest.raises(InputError, match="is not a file"):
                reader(path)


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "text": (b"hello, this is not a model", "cannot be read as an ONNX model"),
    "truncated": (make_model([relu()]).SerializeToString()[:-3], "cannot be read as an ONNX model"),
    "no graph": (onnx.ModelProto(ir_version=10, producer_name="p").SerializeToString(), "has no graph"),
    "a length without end": (b"\x3a" + b"\xff" * 12, "not terminated"),
    "groups": (b"\x3b\x3c", "wire type 3"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_file_is_refused(tmp_path: Path, what: str) -> None:
    data, message = BROKEN[what]
    refused(saved(tmp_path, data), message)


NOT_UTF8: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "an input": lambda m: m.graph.node[0].input.__setitem__(0, "NAME"),
    "an output": lambda m: m.graph.node[0].output.__setitem__(0, "NAME"),
    "an operation": lambda m: setattr(m.graph.node[0], "op_type", "NAME"),
    "a node's name": lambda m: setattr(m.graph.node[0], "name", "NAME"),
    "an attribute": lambda m: m.graph.node[0].attribute.append(helper.make_attribute("NAME", 1)),
    "a graph input": lambda m: setattr(m.graph.input[0], "name", "NAME"),
    "a weight": lambda m: m.graph.initializer.append(helper.make_tensor("NAME", TensorProto.FLOAT, [0], [])),
    "a domain": lambda m: setattr(m.opset_import[0], "domain", "NAME"),
    "a function": lambda m: m.functions.append(function("NAME", [])),
    "a name in a subgraph": lambda m: m.graph.node[0].attribute.append(
        helper.make_attribute("body", helper.make_graph([relu("NAME")], "b", [], []))
    ),
}


@pytest.mark.parametrize("what", NOT_UTF8)
def test_name_that_is_not_utf8_is_refused(tmp_path: Path, what: str) -> None:
    model = make_model([relu()])
    NOT_UTF8[what](model)
    data = model.SerializeToString()
    assert b"NAME" in data
    refused(saved(tmp_path, data.replace(b"NAME", b"\xff\xfe\x80\x81")), "not UTF-8")


def test_text_that_is_not_utf8_in_metadata_does_no_harm(tmp_path: Path) -> None:
    model = make_model([relu()])
    model.graph.node[0].doc_string = "{NAME"
    model.graph.node[0].metadata_props.add(key="NAME", value="NAME")
    path = saved(tmp_path, model.SerializeToString().replace(b"NAME", b"\xff\xfe\x80\x81"))
    assert read_model(path).stored == {}
    with contextlib.suppress(ModelExportError):
        load(path)


# --- limits -----------------------------------------------------------------------------------------------------


def nested(depth: int) -> onnx.ModelProto:
    node = relu()
    for _ in range(depth):
        body = helper.make_graph([node], "b", [], [value("y")])
        node = helper.make_node("If", ["c"], ["y"], then_branch=body)
    return make_model([node])


def test_limits_are_refused_and_what_is_within_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path, make_model([relu("x", f"v{i}") for i in range(20)]))
    for reader in READERS:
        assert reader(path, ReadLimits(nodes=20, model_bytes=path.stat().st_size))
    refused(path, "more nodes than the limit of 19", ReadLimits(nodes=19))
    refused(path, "more than the limit of 100", ReadLimits(model_bytes=100))
    deep = saved(tmp_path, nested(5))
    for reader in READERS:
        assert reader(deep, ReadLimits(nesting=5))
    refused(deep, "nested deeper than the limit of 4", ReadLimits(nesting=4))
    # Nodes in subgraphs and functions count.
    refused(deep, "more nodes", ReadLimits(nodes=5))
    refused(saved(tmp_path, make_model([relu()], functions=[function("F", ["G"])])), "more nodes", ReadLimits(nodes=2))


def test_nesting_that_protobuf_does_not_read_is_refused(tmp_path: Path) -> None:
    # Built from the inside as bytes: protobuf does not write such a file either.
    content = relu().SerializeToString()

    def field(number: int, inside: bytes) -> bytes:
        length, size = len(inside), b""
        while length >= 0x80:
            size += bytes([length & 0x7F | 0x80])
            length >>= 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + inside

    for _ in range(5_000):
        content = field(5, field(6, field(1, content)))
    refused(saved(tmp_path, field(7, field(1, content))), "nested deeper than the limit")


def test_many_empty_nodes_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    nodes = b"\x0a\x00" * 3_000_000
    length = len(nodes)
    size = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14 & 0x7F | 0x80, length >> 21])
    refused(saved(tmp_path, b"\x3a" + size + nodes), "more nodes than the limit")


def test_scan_counts_what_the_parser_finds() -> None:
    model = make_model([relu(), *nested(3).graph.node], [onnx.numpy_helper.from_array(np.ones(9), "w")])
    model.functions.append(function("F", ["G", "H"]))
    assert scan(model.SerializeToString(), 100, 100) == (1 + 4 + 3, 3)


# --- cycles -----------------------------------------------------------------------------------------------------


def test_cycle_in_the_data_flow_is_refused_and_named(tmp_path: Path) -> None:
    nodes = [relu("x", "a"), helper.make_node("Add", ["a", "d"], ["b"]), relu("b", "c"), relu("c", "d"), relu("d", "y")]
    path = saved(tmp_path, make_model(nodes))
    refused(path, r"cycle in the main graph: 'Add' 'b' → 'Relu' 'c' → 'Relu' 'd'")
    inside = helper.make_graph([relu("q", "p"), relu("p", "q")], "b", [], [value("p")])
    body = make_model([helper.make_node("If", ["c"], ["y"], then_branch=inside)])
    refused(saved(tmp_path, body), r"cycle in 'then_branch' of 'If' 'y'")
    itself = make_model([relu("y", "y")])
    refused(saved(tmp_path, itself), "cycle")


def test_nodes_out_of_order_are_read(tmp_path: Path) -> None:
    path = saved(tmp_path, make_model([relu("a", "y"), relu("x", "a")]))
    for reader in READERS:
        assert reader(path)


def test_function_that_calls_itself_is_refused_and_named(tmp_path: Path) -> None:
    calling = helper.make_node("A", ["x"], ["y"], domain="local")
    path = saved(tmp_path, make_model([calling], functions=[function("A", ["B"]), function("B", ["C", "A"])]))
    refused(path, "recursive function: 'A' → 'B' → 'A'")
    alone = make_model([relu()], functions=[function("A", ["A"])])
    refused(saved(tmp_path, alone), "recursive function: 'A' → 'A'")


def test_functions_that_unfold_without_end_are_refused_in_no_time(tmp_path: Path) -> None:
    bomb = [function(f"F{i}", [f"F{i + 1}"] * 2) for i in range(200)]
    path = saved(tmp_path, make_model([helper.make_node("F0", ["x"], ["y"], domain="local")], functions=bomb))
    refused(path, "after its functions are inlined")
    chain = [function(f"F{i}", [f"F{i + 1}"]) for i in range(3_000)]
    for reader in READERS:
        path = saved(tmp_path, make_model([helper.make_node("F0", ["x"], ["y"], domain="local")], functions=chain))
        assert reader(path)


# --- sidecars ---------------------------------------------------------------------------------------------------


@pytest.fixture
def beside(tmp_path: Path, exported: Exporter) -> Callable[[bytes], Path]:
    """A model with the given bytes as its sidecar."""
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("shared_block").path.read_bytes())

    def write(data: bytes) -> Path:
        sidecar_path(path).write_bytes(data)
        return path

    return write


@pytest.mark.xdist_group("shared_block")
def test_inconsistent_or_malicious_sidecar_is_refused(beside: Callable[[bytes], Path], exported: Exporter) -> None:
    good = encode_document(exported("shared_block").document)
    assert read_model(beside(good)).document == exported("shared_block").document
    broken = {
        "not a hierarchy document": b"[" * 200_000,
        "invalid character": good.replace(b'"confidence": 1.0', b'"confidence": NaN', 1),
        "repeated key.*strategy": good.replace(b'"strategy"', b'"strategy": "x", "strategy"', 1),
        "recursion": good.replace(b'"strategy"', b'"more": ' + b"[" * 100_000 + b"]" * 100_000 + b', "strategy"', 1),
        "truncated|malformed": good[: len(good) // 2],
        "hierarchy document": good.replace(b'"strategy": "fx"', b'"strategy": "\\ud800"', 1),
    }
    for message, data in broken.items():
        assert data != good
        refused(beside(data), message)
    refused(beside(good), "for a sidecar", ReadLimits(sidecar_bytes=len(good) - 1))


@pytest.mark.xdist_group("shared_block")
def test_sidecar_that_lists_other_nodes_is_refused(beside: Callable[[bytes], Path], exported: Exporter) -> None:
    document = exported("shared_block").document
    for nodes in (document.nodes[1:], (*document.nodes, document.nodes[0]), document.nodes[::-1]):
        refused(beside(encode_document(msgspec.structs.replace(document, nodes=nodes))), "lists other nodes")


@pytest.mark.xdist_group("shared_block")
def test_sidecar_in_another_layout_is_read(beside: Callable[[bytes], Path], exported: Exporter) -> None:
    compact = msgspec.json.encode(exported("shared_block").document)
    assert read_model(beside(compact)).document == exported("shared_block").document
    with_more = compact.replace(b"{", b'{"a later field": {"a": 1, "b": [1]},', 1)
    assert decode_document(with_more, "x") == exported("shared_block").document


@pytest.mark.xdist_group("shared_block")
def test_sidecar_that_leads_out_of_the_folder_is_refused(
    tmp_path: Path, beside: Callable[[bytes], Path], exported: Exporter
) -> None:
    path = beside(b"")
    outside = tmp_path.parent / "outside.json"
    outside.write_bytes(encode_document(exported("shared_block").document))
    sidecar_path(path).unlink()
    sidecar_path(path).symlink_to(outside)
    refused(path, "outside its folder")


# --- anything ---------------------------------------------------------------------------------------------------

SEED = make_model(
    [
        helper.make_node("Constant", [], ["k"], value=helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])),
        helper.make_node("If", ["c"], ["y"], then_branch=helper.make_graph([relu()], "b", [], [value("y")])),
        helper.make_node("F", ["x"], ["z"], domain="local", axis=1),
    ],
    [external("w.data", offset=0)],
    [function("F", [])],
).SerializeToString()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(SEED)
    for _ in range(draw(st.integers(1, 6))):
        position = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(["flip", "cut", "insert", "double"]))
        if how == "flip":
            data[position] = draw(st.integers(0, 255))
        elif how == "cut":
            del data[position : position + draw(st.integers(1, 8))]
        elif how == "insert":
            data[position:position] = draw(st.binary(max_size=8))
        else:
            data[position:position] = data[position : position + draw(st.integers(1, 60))]
        if not data:
            break
    return bytes(data)


@settings(max_examples=400, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(mutated(), st.binary(max_size=60)))
def test_any_bytes_are_a_model_or_one_error_of_ours(tmp_path: Path, data: bytes) -> None:
    path = saved(tmp_path, data)
    for reader in READERS:
        try:
            reader(path)
        except ModelExportError as error:
            # Said of this file, and not of something that went wrong on the way.
            assert str(path) in str(error)  # noqa: PT017  what is tested is that nothing else is raised
