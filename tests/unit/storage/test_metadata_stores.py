"""The hierarchy in and out of ONNX files: three stores that agree, and nothing left when they are taken out."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir
import pytest
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.subgraphs import all_nodes

from modelexport.errors import FileFormatError
from modelexport.exporting.export import export_model
from modelexport.exporting.result import ExportResult
from modelexport.graph.node_ids import nodes_with_ids
from modelexport.storage.metadata_stores import (
    KIND_KEY,
    MODULE_KEY,
    PREFIX,
    TAG_KEY,
    read_doc_string,
    read_sidecar,
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


def test_nodes_in_the_branches_of_a_condition_have_the_owner_that_ran_them(exports: Exports) -> None:
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


@pytest.mark.parametrize(
    "text",
    [None, "", "words", "[]", "{}", '{"module": "a"}', "{" * 100_000, OUR_FORM[:-1], OUR_FORM.replace("1", '"1"')],
)
def test_doc_string_of_another_tool_is_not_read_as_ours(text: str | None) -> None:
    assert read_doc_string(text) is None


def test_doc_string_of_ours_is_read_back() -> None:
    stored = read_doc_string(OUR_FORM)
    assert stored is not None
    assert (stored.hierarchy_path, stored.module, stored.kind, stored.doc_string) == ("/A", "", "exact", None)
    assert json.loads(msgspec.json.encode(stored)) == json.loads(OUR_FORM)


# --- private ---------------------------------------------------------------------------------------------------


@pytest.mark.sanity
@pytest.mark.parametrize("mark", SOURCE_MARKS)
def test_private_export_has_none_of_the_source_paths_of_a_plain_one(exports: Exports, mark: bytes) -> None:
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
