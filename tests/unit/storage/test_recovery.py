"""A hierarchy without its sidecar: from our stores, torch metadata or scoped names; and what it cannot say."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.conftest import Exported, Exporter
from tests.support import zoo

from modelexport import strip_hierarchy
from modelexport.errors import FileFormatError
from modelexport.graph.node_ids import proto_nodes_with_ids
from modelexport.hierarchy.calls import CallId
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.document_codec import decode_document, encode_document
from modelexport.storage.exporter_scopes import NAME_SCOPES_KEY, align_tag, read_name_scope, read_torch_scope
from modelexport.storage.opened_file import read_model
from modelexport.storage.recovery import Recovered, find_hierarchy, recover_document


def proto_of(ours: Exported) -> onnx.ModelProto:
    return onnx.load(ours.path, load_external_data=False)


def checked(found: Recovered) -> HierarchyDocument:
    """The document, after it went through the checks that a sidecar goes through."""
    assert decode_document(encode_document(found.document), "recovered") == found.document
    assert found.document.coverage == 1.0
    assert sum(found.origins.values()) == len(found.document.nodes)
    return found.document


def owners(document: HierarchyDocument) -> dict[str, tuple[str, str, str]]:
    return {node.id: (node.module, node.tag, node.kind) for node in document.nodes}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("bert", "shared_block", "cnn", "cond")]
)
@pytest.mark.parametrize("store", ["doc_string", "metadata_props"])
def test_each_of_our_stores_gives_every_owner_tag_and_kind(exported: Exporter, name: str, store: str) -> None:
    ours = exported(name)
    proto = proto_of(ours)
    for _, node in proto_nodes_with_ids(proto):
        if store == "metadata_props":
            node.ClearField("doc_string")
        else:
            del node.metadata_props[:]
    found = recover_document(proto)
    assert found.origin == store
    document = checked(found)
    assert owners(document) == owners(ours.document)
    assert document.graph_hash == ours.document.graph_hash
    assert document.exporter == f"recovered from {store}"
    # Every call that is found is one that there was, with the tag it had; those without nodes are not found.
    there = {call.id: (call.tag, call.path) for call in ours.document.calls}
    assert {call.id: (call.tag, call.path) for call in document.calls}.items() <= there.items()
    classes = {module.path: module.class_name for module in ours.document.modules}
    assert all(m.class_name in (classes[m.path], "unknown") for m in document.modules if m.path in classes)


@pytest.mark.xdist_group("shared_block")
def test_calls_of_one_module_are_distinguished_by_our_stores_with_their_callers(exported: Exporter) -> None:
    document = checked(recover_document(proto_of(exported("shared_block"))))
    parents = {call.id: call.parent for call in document.calls}
    assert parents["blk@1"] == ""
    assert parents["blk.lin@1"] == "blk@1"
    assert parents["blk.norm@2"] == "blk@2"


@pytest.mark.xdist_group("bert")
def test_contributors_come_from_their_tags(exported: Exporter) -> None:
    document = checked(recover_document(proto_of(exported("bert"))))
    ours = {node.id: node.contributors for node in exported("bert").document.nodes if node.contributors}
    assert ours
    assert {node.id: node.contributors for node in document.nodes if node.contributors} == ours


@pytest.mark.xdist_group("bert")
def test_torch_metadata_gives_modules_classes_and_tags_and_says_it_is_inferred(exported: Exporter) -> None:
    ours = exported("bert")
    found = recover_document(strip_hierarchy(proto_of(ours)))
    document = checked(found)
    assert found.origin == "torch metadata"
    assert any("does not distinguish the calls" in words for words in found.missing)
    assert {node.kind for node in document.nodes} == {"inferred"}
    assert all(0 < node.confidence < 1 and node.reason for node in document.nodes)
    assert {n.id: (n.module, n.tag) for n in document.nodes} == {n.id: (n.module, n.tag) for n in ours.document.nodes}
    classes = {module.path: module.qualified_class for module in ours.document.modules}
    called = {call.path for call in document.calls}
    assert {m.path: m.qualified_class for m in document.modules if m.path in called} == {p: classes[p] for p in called}
    parameters = {m.path: set(m.parameters) for m in document.modules if m.parameters}
    assert parameters["embeddings.word_embeddings"] == {"weight"}
    # The optimizer transposed the others, and gave them names of its own.
    assert any("without the name of a parameter" in words for words in found.missing)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with repeated calls by plain TorchScript export."""
    path = tmp_path_factory.mktemp("scripted") / "shared.onnx"
    example = zoo.build("shared_block")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(example.model, example.inputs, path, dynamo=False)
    return path


def test_scoped_names_give_modules_and_calls(scripted: Path) -> None:
    found = find_hierarchy(read_model(scripted))
    document = checked(found)
    assert found.origin == "scoped names"
    assert {call.id for call in document.calls} >= {"", "blk", "blk@1", "blk@2", "blk.lin@2", "out"}
    assert {node.module for node in document.nodes if node.op == "Relu"} == {"blk", "blk@1", "blk@2"}
    assert {call.id: call.parent for call in document.calls}["blk.lin@2"] == "blk@2"
    assert {module.class_name for module in document.modules} == {"unknown"}
    assert any("no classes" in words for words in found.missing)
    (linear,) = (module for module in document.modules if module.path == "blk.lin")
    assert linear.parameters["weight"].dtype == "float32"


NAMES = {
    ("/encoder/layer.0/attention/MatMul_1", "MatMul"): "encoder.layer.0.attention",
    ("/f/f.0/Conv", "Conv"): "f.0",
    ("/l_1/Relu", "Relu"): "l_1",
    ("/known_2/Relu", "Relu"): "known@2",
    ("/known/inner_1/Relu", "Relu"): "known.inner@1",
    ("/Add", "Add"): "",
    ("/a/b/Mul", "Add"): None,
    ("MatMul_3", "MatMul"): None,
    ("//MatMul", "MatMul"): None,
    ("", ""): None,
}


@pytest.mark.parametrize(("name", "operation"), NAMES)
def test_scope_in_a_node_name(name: str, operation: str) -> None:
    scope = read_name_scope(name, operation, {"known", "known.inner", "l"} if "l_1" not in name else {"l_1"})
    assert (str(scope.calls[-1]) if scope else None) == NAMES[name, operation]


def test_placeholders_and_damaged_metadata_name_no_module() -> None:
    for text in (
        "['_empty_nn_module_stack_from_metadata_hook', 'sym_size_int_12']",
        "['', 'a'",
        "['',]",
        "__import__('os')",
        "[" * 50_000,
        "['" + "\\" * 50_000,
        "['x', 'y']",
    ):
        assert read_torch_scope({NAME_SCOPES_KEY: text}) is None, text[:40]
    scope = read_torch_scope({NAME_SCOPES_KEY: "['', \"it's\", 'op']"})
    assert scope is not None
    assert scope.calls[-1] == CallId("it's")


def test_node_that_says_nothing_belongs_to_the_innermost_call_around_its_neighbours() -> None:
    def node(name: str, source: str, target: str) -> onnx.NodeProto:
        return helper.make_node("Relu", [source], [target], name=name)

    nodes = [
        node("/a/one/Relu", "x", "p"),
        node("", "p", "q"),
        node("", "q", "r"),
        node("/a/two/Relu", "r", "s"),
        node("", "elsewhere", "t"),
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph(nodes, "g", [value], [value]))
    found = recover_document(model)
    document = checked(found)
    assert [node.module for node in document.nodes] == ["a.one", "a", "a", "a.two", ""]
    assert [node.confidence for node in document.nodes] == [0.6, 0.5, 0.5, 0.6, 0.1]
    assert found.origins == {"scoped names": 2, "none": 3}


def test_file_that_speaks_of_no_modules_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    path = tmp_path / "plain.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(FileFormatError, match=r"plain.onnx has no hierarchy \(there is no sidecar.*modelexport tag"):
        find_hierarchy(read_model(path))


@pytest.mark.xdist_group("cond")
def test_sidecar_is_taken_where_there_is_one(exported: Exporter) -> None:
    found = find_hierarchy(read_model(exported("cond").path))
    assert found.origin == "sidecar"
    assert found.document == exported("cond").document
    assert found.missing == ()


ALIGNED = {
    ("encoder.layer.0.self.q", "/Bert/Encoder/Layer.0/SelfAttention"): ["", "encoder", "encoder.layer.0", None],
    ("blk.lin", "/Net/Block@2"): ["", "blk"],
    ("a.b", "/Net/Two.b"): ["", "a.b"],
    ("a.b", "/Net/A/B/C"): [""],
    ("", "/Net"): [""],
}


@pytest.mark.parametrize(("path", "tag"), ALIGNED)
def test_segments_of_a_tag_stand_for_modules_on_the_way(path: str, tag: str) -> None:
    expected = [step for step in ALIGNED[path, tag] if step is not None]
    steps = align_tag(path, tag, {}, {})
    assert [step.path for step in steps][: len(expected)] == expected
    assert len(steps) == len(ALIGNED[path, tag])


def test_known_classes_and_tags_of_others_decide_what_a_segment_stands_for() -> None:
    path, tag = "a.b.c", "/Net/Inner"
    assert [step.path for step in align_tag(path, tag, {}, {})] == ["", "a"]
    assert [step.path for step in align_tag(path, tag, {}, {"a": "Outer"})] == ["", "a.b"]
    assert [step.path for step in align_tag(path, tag, {"a.b": 1}, {})] == ["", "a.b.c"]


texts = st.text("/.@ab01%_'\"[],\\ ", max_size=30)


@settings(max_examples=300, deadline=None)
@given(first=texts, second=texts)
def test_no_text_in_a_file_breaks_reading_scopes(first: str, second: str) -> None:
    align_tag(first, "/" + second, {}, {})
    read_name_scope(first, second, set())
    read_torch_scope({NAME_SCOPES_KEY: first})


@settings(max_examples=150, deadline=None)
@given(
    said=st.lists(
        st.tuples(
            st.text("ab.@01", max_size=6),
            st.text("/AB.@01%", max_size=10),
            st.sampled_from(["exact", "fused", "inferred", "odd"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_stores_that_lie_give_a_sound_document_or_an_error(said: list[tuple[str, str, str]]) -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(len(said))]
    for node, (module, tag, kind) in zip(nodes, said, strict=True):
        for key, text in {"tag": tag, "module": module, "kind": kind}.items():
            node.metadata_props.add(key=f"pkg.modelexport.{key}", value=text)
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    try:
        found = recover_document(model)
    except FileFormatError:
        assert not any(tag.startswith("/") and kind != "odd" for _, tag, kind in said)
    else:
        checked(found)


def test_long_hostile_texts_take_no_time() -> None:
    started = time.perf_counter()
    for text in ("['" + "a', '" * 10_000, "['" + "\\'" * 40_000, "[" + "'', " * 15_000 + "]"):
        read_torch_scope({NAME_SCOPES_KEY: text})
    read_name_scope("/a" * 40_000, "a", set())
    align_tag("a." * 5_000, "/A" * 5_000, {}, {})
    assert time.perf_counter() - started < 5
