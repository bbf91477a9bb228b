"""The hierarchy in and out of ONNX files: three stores that agree, and nothing left when they are taken out."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.conftest import Exporter
from tests.support import zoo

from modelexport.errors import FileFormatError, InputError
from modelexport.exporting.export import export_model
from modelexport.exporting.result import ExportResult
from modelexport.graph.digest import graph_hash
from modelexport.graph.node_ids import nodes_with_ids
from modelexport.graph.tensors import tensors_with_ids
from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import CallId, CallTree, ModuleCall
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree
from modelexport.hierarchy.tags import TagView
from modelexport.storage.document_builder import build_document
from modelexport.storage.metadata_stores import (
    KIND_KEY,
    MODULE_KEY,
    PREFIX,
    TAG_KEY,
    read_doc_string,
    read_sidecar,
    remove_source_references,
    strip_hierarchy,
    write_stores,
)
from modelexport.storage.opened_file import load

pytestmark = pytest.mark.xdist_group("cond")
ROOT = Path(__file__).parents[2]
# What only a file of the exporting machine is called, and how a stack trace looks.
SOURCE_MARKS = (str(ROOT).encode(), b"site-packages", b'.py"', b"eval_with_key", b'File "')


@dataclasses.dataclass(frozen=True)
class Exports:
    """A conditional model, whose nodes are in subgraphs too, and a convolutional one, whose nodes are fused."""

    cond: ExportResult
    private: ExportResult
    cnn: ExportResult


@pytest.fixture(scope="module")
def exports(exported: Exporter, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    cond = zoo.build("cond")
    path = tmp_path_factory.mktemp("private") / "private.onnx"
    with warnings.catch_warnings():
        # torch warns of its own doings while it traces a condition.
        warnings.simplefilter("ignore")
        return Exports(
            exported("cond").result,
            export_model(cond.model, cond.inputs, path, private=True),
            exported("cnn").result,
        )


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a file, found without our code."""
    waiting = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            waiting.extend(attribute.g.node)
            waiting.extend(inner for graph in attribute.graphs for inner in graph.node)


def properties(entries: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in entries}


# --- the stores agree ------------------------------------------------------------------------------------------


@pytest.mark.sanity
@pytest.mark.parametrize("name", ["cond", "cnn", "private"])
def test_three_stores_say_the_same_of_every_node_after_saving_and_loading(exports: Exports, name: str) -> None:
    result: ExportResult = getattr(exports, name)
    document = read_sidecar(result.sidecar_path)
    tags = {call.id: call.tag for call in document.calls}
    loaded = ir.load(result.onnx_path)
    records = {record.id: record for record in document.nodes}
    nodes = dict(nodes_with_ids(loaded))
    assert nodes.keys() == records.keys()
    for identity, node in nodes.items():
        record = records[identity]
        assert node.doc_string is not None
        assert json.loads(node.doc_string) == {
            "hierarchy_tags": [record.tag, *(tags[call] for call in record.contributors)],
            "hierarchy_path": record.tag,
            "hierarchy_count": 1 + len(record.contributors),
            "hierarchy_method": "fx",
            "module": record.module,
            "kind": record.kind,
        }
        ours = {key: value for key, value in node.metadata_props.items() if key.startswith(PREFIX)}
        assert ours == {TAG_KEY: record.tag, MODULE_KEY: record.module, KIND_KEY: record.kind}
        assert node.op_type == record.op
        assert record.tag == tags[record.module]
    assert document == result.document


def test_nodes_in_the_bodies_of_a_condition_have_the_owner_that_ran_them(exports: Exports) -> None:
    stored = {
        (node.op_type, json.loads(node.doc_string)["module"]) for node in all_nodes(onnx.load(exports.cond.onnx_path))
    }
    assert {("Tanh", "yes"), ("Tanh", "no"), ("Gemm", "yes.lin"), ("Gemm", "no.lin")} <= stored
    assert {("Mul", ""), ("Sub", "")} <= stored


def test_fused_node_has_the_tags_of_its_contributors_behind_its_own(exports: Exports) -> None:
    fused = [
        content
        for node in all_nodes(onnx.load(exports.cnn.onnx_path))
        if (content := json.loads(node.doc_string))["kind"] == "fused"
    ]
    assert fused
    for content in fused:
        assert content["hierarchy_count"] == len(content["hierarchy_tags"]) == 2
        assert content["hierarchy_tags"][0] == content["hierarchy_path"]


@pytest.mark.parametrize("name", ["cond", "cnn"])
def test_tagged_file_passes_the_checker(exports: Exports, name: str) -> None:
    onnx.checker.check_model(getattr(exports, name).onnx_path, full_check=True)


def test_loaded_model_has_the_document_and_what_the_nodes_say(exports: Exports) -> None:
    loaded = load(exports.cond.onnx_path)
    assert loaded.document == exports.cond.document
    assert loaded.missing == ""
    assert {identity: stored.module for identity, stored in loaded.stored.items()} == {
        record.id: record.module for record in exports.cond.document.nodes
    }
    assert sum(loaded.tag_counts().values()) == len(exports.cond.document.nodes)


def test_sidecar_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"none_hierarchy\.json"):
        read_sidecar(tmp_path / "none_hierarchy.json")


# --- by hand, to see what was there before ---------------------------------------------------------------------


def tagged(proto: onnx.ModelProto) -> tuple[ir.Model, HierarchyDocument]:
    """The model with every node given to one call or another."""
    model = ir.from_proto(proto)
    root, child, again = CallId(""), CallId("child"), CallId("child", 1)
    tree = ModuleTree({"": ModuleInfo("", "Net", "my.Net"), "child": ModuleInfo("child", "Child", "my.Child")})
    calls = CallTree({c: ModuleCall(c.path, c.index, None if c == root else root) for c in (root, child, again)})
    owners = [
        Attribution(child, Kind.EXACT, 1.0, "recorded"),
        Attribution(again, Kind.FUSED, 0.9, "fused", (child, root)),
        Attribution(root, Kind.INFERRED, 0.5, "from data flow"),
    ]
    nodes = [
        (identity, node.op_type, owners[i % len(owners)]) for i, (identity, node) in enumerate(nodes_with_ids(model))
    ]
    document = build_document(
        strategy="fx",
        exporter="dynamo",
        graph_hash=graph_hash(model),
        view=TagView.create(),
        tree=tree,
        calls=calls,
        nodes=nodes,
        graph_tensors=tensors_with_ids(model),
    )
    write_stores(model, document)
    return model, document


def plain(*doc_strings: str | None, ir_version: int = 10) -> onnx.ModelProto:
    """A model with a node for each doc_string, all over again in the subgraphs of an If and in a function.

    Every place that can hold foreign metadata holds some.
    """

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    def chain(start: str, end: str) -> list[onnx.NodeProto]:
        made = []
        for i, doc in enumerate(doc_strings):
            source, result = start if i == 0 else f"{end}_{i - 1}", end if i == len(doc_strings) - 1 else f"{end}_{i}"
            node = helper.make_node("Relu", [source], [result], name=f"node_{i}")
            if doc is not None:
                node.doc_string = doc
            if ir_version >= 10:
                node.metadata_props.add(key="namespace", value=f"of torch {i}")
                node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="kept")
                node.metadata_props.add(key="pkg.modelexporter.tag", value="another tool's")
            made.append(node)
        return made

    branches = {
        f"{side}_branch": helper.make_graph(chain("x", f"{side}_y"), side, [], [value(f"{side}_y")])
        for side in ("then", "else")
    }
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    choice = helper.make_node("If", ["c"], ["chosen"], **branches)
    called = helper.make_node("F", ["chosen"], ["called"], domain="local")
    function = helper.make_function(
        "local", "F", ["a"], ["b"], chain("a", "b"), [helper.make_opsetid("", 18)], doc_string="a function of theirs"
    )
    graph = helper.make_graph(
        [choice, called, *chain("called", "y")], "g", [condition, value("x")], [value("y")], doc_string="their graph"
    )
    model = helper.make_model(
        graph,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
        ir_version=ir_version,
        doc_string="their model",
    )
    model.metadata_props.add(key="author", value="someone")
    model.metadata_props.add(key="pkg.modelexporter.version", value="another tool's")
    return model


OUR_FORM = json.dumps(
    {
        "hierarchy_tags": ["/A"],
        "hierarchy_path": "/A",
        "hierarchy_count": 1,
        "hierarchy_method": "fx",
        "module": "",
        "kind": "exact",
    }
)
BEFORE = ("plain words", None, '{"json": "of another tool"}', "{not json", "ümläut \u2028 \U0001f600 \\ \" '")


def test_what_stood_in_a_doc_string_is_kept_in_ours() -> None:
    model, _ = tagged(plain(*BEFORE))
    kept = [json.loads(node.doc_string or "").get("doc_string") for node in list(model.graph)[2:]]
    assert kept == list(BEFORE)


@pytest.mark.parametrize("form", ["ir", "proto"])
def test_strip_restores_the_model_as_it_was(form: str) -> None:
    before = plain(*BEFORE)
    model, document = tagged(before)
    written = ir.to_proto(model)
    assert all(read_doc_string(node.doc_string) is not None for node in all_nodes(written))
    assert len(list(all_nodes(written))) == len(document.nodes) == 2 + 4 * len(BEFORE)
    stripped = ir.to_proto(strip_hierarchy(model)) if form == "ir" else strip_hierarchy(written)
    assert stripped == ir.to_proto(ir.from_proto(before))
    assert PREFIX.encode() not in stripped.SerializeToString()
    assert b"hierarchy_" not in stripped.SerializeToString()


@settings(max_examples=30, deadline=None)
@given(doc=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_strip_restores_any_text_that_stood_in_a_doc_string(doc: str) -> None:
    model, _ = tagged(plain(doc))
    # An empty one is none.
    assert strip_hierarchy(ir.to_proto(model)) == ir.to_proto(ir.from_proto(plain(doc or None)))
    assert (list(strip_hierarchy(model).graph)[-1].doc_string or "") == doc


@pytest.mark.parametrize("name", ["cond", "cnn"])
def test_strip_of_an_export_leaves_what_torch_wrote_and_nothing_of_ours(exports: Exports, name: str) -> None:
    written = onnx.load(getattr(exports, name).onnx_path)
    stripped = strip_hierarchy(written)
    through_ir = ir.to_proto(strip_hierarchy(ir.from_proto(written)))
    for node, original, other in zip(all_nodes(stripped), all_nodes(written), all_nodes(through_ir), strict=True):
        foreign = {k: v for k, v in properties(original.metadata_props).items() if not k.startswith(PREFIX)}
        assert "namespace" in foreign
        assert properties(node.metadata_props) == properties(other.metadata_props) == foreign
        assert not node.doc_string
        assert not other.doc_string
    assert PREFIX.encode() not in stripped.SerializeToString()
    onnx.checker.check_model(stripped)


def test_namespace_of_a_node_that_has_none_is_the_one_that_torch_writes(exports: Exports) -> None:
    result = exports.cnn
    model = onnx.load(result.onnx_path)
    exact = {record.id for record in result.document.nodes if record.kind == "exact"}

    def groups(of: onnx.ModelProto) -> dict[str, list[str]]:
        """The enclosing modules of each node with an exact owner."""
        nodes = {node.output[0]: {entry.key: entry.value for entry in node.metadata_props} for node in of.graph.node}
        return {name: properties["namespace"].split("/")[:-1] for name, properties in nodes.items() if name in exact}

    by_torch = groups(model)
    bare = strip_hierarchy(model)
    for node in bare.graph.node:
        del node.metadata_props[:]
    write_stores(bare, result.document)
    assert groups(bare) == by_torch
    assert all(not node.metadata_props for node in strip_hierarchy(bare).graph.node)


def test_strip_changes_nothing_of_a_model_that_was_never_tagged() -> None:
    proto = plain(*BEFORE)
    assert strip_hierarchy(proto) == proto
    assert ir.to_proto(strip_hierarchy(ir.from_proto(proto))) == ir.to_proto(ir.from_proto(proto))


def test_strip_does_not_change_its_argument() -> None:
    model, _ = tagged(plain(*BEFORE))
    proto = ir.to_proto(model)
    before = proto.SerializeToString(deterministic=True)
    strip_hierarchy(proto)
    strip_hierarchy(model)
    assert proto.SerializeToString(deterministic=True) == before
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("wrong", ["model.onnx", Path("model.onnx"), b"bytes", None, {}])
def test_strip_of_what_is_no_model_is_an_input_error(wrong: Any) -> None:
    with pytest.raises(InputError, match=type(wrong).__name__):
        strip_hierarchy(wrong)


def test_nodes_of_an_ir_version_without_metadata_get_none() -> None:
    old, document = tagged(plain(*BEFORE, ir_version=9))
    written = ir.to_proto(old)
    assert all(len(node.metadata_props) == 0 for node in all_nodes(written))
    assert {json.loads(node.doc_string)["module"] for node in all_nodes(written)} == {"", "child", "child@1"}
    assert len(list(all_nodes(written))) == len(document.nodes)
    new, _ = tagged(plain(*BEFORE, ir_version=10))
    assert all(TAG_KEY in properties(node.metadata_props) for node in all_nodes(ir.to_proto(new)))


@pytest.mark.parametrize(
    "text",
    [None, "", "words", "[]", "{}", '{"module": "a"}', "{" * 100_000, OUR_FORM[:-1], OUR_FORM.replace("1", '"1"')],
)
def test_doc_string_of_somebody_else_is_not_taken_for_ours(text: str | None) -> None:
    assert read_doc_string(text) is None


def test_doc_string_of_ours_is_read_back() -> None:
    stored = read_doc_string(OUR_FORM)
    assert stored is not None
    assert (stored.hierarchy_path, stored.module, stored.kind, stored.doc_string) == ("/A", "", "exact", None)
    assert json.loads(msgspec.json.encode(stored)) == json.loads(OUR_FORM)


# --- private ---------------------------------------------------------------------------------------------------


@pytest.mark.sanity
@pytest.mark.parametrize("mark", SOURCE_MARKS)
def test_private_export_holds_no_source_path_that_a_plain_one_holds(exports: Exports, mark: bytes) -> None:
    assert mark in exports.cond.onnx_path.read_bytes()
    assert mark not in exports.private.onnx_path.read_bytes()
    assert mark not in exports.private.sidecar_path.read_bytes()


def test_private_export_attributes_as_a_plain_one_does(exports: Exports) -> None:
    assert exports.private.document == exports.cond.document
    plain_nodes, private_nodes = (
        [(n.name, n.op_type, list(n.input), list(n.output)) for n in all_nodes(onnx.load(result.onnx_path))]
        for result in (exports.cond, exports.private)
    )
    assert private_nodes == plain_nodes


@pytest.mark.parametrize("place", ["model", "graph", "body", "function", "node", "output", "doc_string"])
def test_source_references_are_removed_wherever_they_are(place: str) -> None:
    trace = f'File "{ROOT}/models/net.py", line 3, in forward'
    model = ir.from_proto(plain("words"))
    choice, last = next(iter(model.graph)), list(model.graph)[-1]
    (function,) = model.functions.values()
    if place == "doc_string":
        last.doc_string = trace
    else:
        holders: dict[str, dict[str, str]] = {
            "model": model.metadata_props,
            "graph": model.graph.metadata_props,
            "body": next(iter(choice.attributes["then_branch"].as_graph())).metadata_props,
            "function": next(iter(function)).metadata_props,
            "node": last.metadata_props,
            "output": last.outputs[0].metadata_props,
        }
        holders[place]["trace"] = trace
    assert str(ROOT).encode() in ir.to_proto(model).SerializeToString()
    remove_source_references(model)
    assert str(ROOT).encode() not in ir.to_proto(model).SerializeToString()
    assert last.metadata_props["namespace"] == "of torch 0"
