"""The hierarchy in models built by hand, whose own metadata and doc_strings survive tagging and stripping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.support.subgraphs import all_nodes

from modelexport.errors import InputError
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
    PREFIX,
    TAG_KEY,
    read_doc_string,
    remove_source_references,
    strip_hierarchy,
    write_stores,
)

# --- by hand, to see what was there before ---------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


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


BEFORE = ("plain words", None, '{"json": "of another tool"}', "{not json", "ümläut \u2028 \U0001f600 \\ \" '")


def test_existing_doc_string_is_kept_inside_ours() -> None:
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
def test_strip_restores_any_existing_doc_string(doc: str) -> None:
    model, _ = tagged(plain(doc))
    # An empty one is none.
    assert strip_hierarchy(ir.to_proto(model)) == ir.to_proto(ir.from_proto(plain(doc or None)))
    assert (list(strip_hierarchy(model).graph)[-1].doc_string or "") == doc


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
def test_strip_of_an_object_that_is_not_a_model_is_an_input_error(wrong: Any) -> None:
    with pytest.raises(InputError, match=type(wrong).__name__):
        strip_hierarchy(wrong)


def test_nodes_of_an_ir_version_without_metadata_get_no_metadata() -> None:
    old, document = tagged(plain(*BEFORE, ir_version=9))
    written = ir.to_proto(old)
    assert all(len(node.metadata_props) == 0 for node in all_nodes(written))
    assert {json.loads(node.doc_string)["module"] for node in all_nodes(written)} == {"", "child", "child@1"}
    assert len(list(all_nodes(written))) == len(document.nodes)
    new, _ = tagged(plain(*BEFORE, ir_version=10))
    assert all(any(entry.key == TAG_KEY for entry in node.metadata_props) for node in all_nodes(ir.to_proto(new)))


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
