"""R13: the document knows every tensor of the file, who makes it and all who read it. Checked with plain onnx."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.conftest import Exporter
from tests.support import zoo

import modelexport
from modelexport.graph.digest import graph_hash
from modelexport.graph.node_ids import nodes_with_ids, operation
from modelexport.graph.tensors import tensors_with_ids
from modelexport.hierarchy.calls import ROOT_CALL, CallTree
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree
from modelexport.hierarchy.tags import TagView
from modelexport.storage.document_builder import build_document

pytestmark = pytest.mark.integration

_VARIANTS = [
    pytest.param(name, optimize, id=f"{name}-{'optimized' if optimize else 'raw'}", marks=pytest.mark.xdist_group(name))
    for name in zoo.names()
    for optimize in (True, False)
]


class _Reading:
    """Tensors of a file with the nodes that make and read them, bodies and functions included."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.sources: dict[str, str] = {}
        self.producers: dict[str, str] = {}
        self.consumers: dict[str, set[str]] = {}
        self.results: set[str] = set()
        names = self._graph(model.graph, "", {})
        self.results.update(names[output.name] for output in model.graph.output)
        for function in model.functions:
            prefix = "::".join(part for part in (function.domain, function.name, function.overload) if part) + "/"
            known = {name: prefix + name for name in function.input}
            self.sources.update(dict.fromkeys(known.values(), "input"))
            self._nodes(function.node, prefix, known)
            self.results.update(known[name] for name in function.output)

    def _graph(self, graph: onnx.GraphProto, prefix: str, around: dict[str, str]) -> dict[str, str]:
        known = dict(around)
        weights = {tensor.name for tensor in graph.initializer}
        for name in [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]:
            known[name] = prefix + name
            self.sources[prefix + name] = "weight" if name in weights else "input"
        self._nodes(graph.node, prefix, known)
        return known

    def _nodes(self, nodes: Iterable[onnx.NodeProto], prefix: str, known: dict[str, str]) -> None:
        for node in nodes:
            identity = prefix + next(name for name in node.output if name)
            for name in node.input:
                if name:
                    self.consumers.setdefault(known[name], set()).add(identity)
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    inner = self._graph(attribute.g, f"{identity}/{attribute.name}/", known)
                    for output in attribute.g.output:
                        self.consumers.setdefault(inner[output.name], set()).add(identity)
            for name in node.output:
                if name:
                    known[name] = prefix + name
                    self.sources[prefix + name] = "node"
                    self.producers[prefix + name] = identity


def _assert_complete(document: HierarchyDocument, model: onnx.ModelProto) -> None:
    reading = _Reading(model)
    owners = {node.id: (node.module, *node.contributors) for node in document.nodes}
    calls = {call.id for call in document.calls}
    assert {tensor.id: tensor.source for tensor in document.tensors} == reading.sources
    assert len(document.tensors) == len(reading.sources)
    for tensor in document.tensors:
        producer = reading.producers.get(tensor.id)
        if producer is not None:
            assert tensor.producer == owners[producer][0]
        else:
            # A weight that was computed when the graph was folded is still somebody's work.
            assert tensor.producer is None or (tensor.source == "weight" and tensor.producer in calls)
        assert set(tensor.consumers) == {call for node in reading.consumers.get(tensor.id, ()) for call in owners[node]}
        assert tensor.output == (tensor.id in reading.results)


@pytest.mark.parametrize(("name", "optimize"), _VARIANTS)
def test_every_tensor_of_the_file_has_its_producer_and_all_its_consumers(
    exported: Exporter, name: str, optimize: bool
) -> None:
    ours = exported(name, optimize=optimize)
    _assert_complete(ours.document, onnx.load(ours.path))
    assert modelexport.load(ours.path).document.tensors == ours.document.tensors


@pytest.mark.xdist_group("cond")
def test_tensors_of_subgraphs_are_included(exported: Exporter) -> None:
    tensors = {tensor.id: tensor for tensor in exported("cond").document.tensors}
    inside = [identity for identity in tensors if "/then_branch/" in identity]
    assert len(inside) > 1
    # What the branches read from outside is consumed by the modules in the branches.
    assert {"yes.lin", "no.lin"} <= set(tensors["linear"].consumers)


@pytest.mark.xdist_group("bert")
def test_mask_that_all_layers_read_names_every_one_of_them(exported: Exporter) -> None:
    document = exported("bert", optimize=False).document
    mask = next(c for c in document.calls if c.id == "encoder.layer.1").inputs[1]
    assert mask.name == "attention_mask"
    record = next(tensor for tensor in document.tensors if tensor.id == mask.tensor)
    layers = {call.split(".attention")[0] for call in record.consumers}
    assert {"encoder.layer.0", "encoder.layer.1"} <= layers


@pytest.mark.xdist_group("bert")
def test_weights_say_which_parameter_they_are(exported: Exporter) -> None:
    ours = exported("bert", optimize=False)
    parameters = {tensor.parameter for tensor in ours.document.tensors if tensor.source == "weight"}
    stored = {tensor.name for tensor in onnx.load(ours.path).graph.initializer}
    named = {name for name, _ in ours.example.model.named_parameters()}
    assert named & stored <= parameters
    assert len(named & stored) > 0.9 * len(named)
    assert all(tensor.parameter is None for tensor in ours.document.tensors if tensor.source != "weight")


def test_functions_and_nested_subgraphs_are_read(tmp_path: Path) -> None:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    deep = helper.make_graph([helper.make_node("Neg", ["y"], ["deep"])], "deep", [], [info("deep")])
    flat = helper.make_graph([helper.make_node("Abs", ["x"], ["flat"])], "flat", [], [info("flat")])
    nested = helper.make_node("If", ["c"], ["inner"], then_branch=deep, else_branch=flat)
    outer = helper.make_graph([helper.make_node("Exp", ["x"], ["y"]), nested], "outer", [], [info("inner")])
    other = helper.make_graph([helper.make_node("F", ["x"], ["called"], domain="my")], "other", [], [info("called")])
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["z"], then_branch=outer, else_branch=other)],
        "main",
        [info("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [info("z")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    function = helper.make_function("my", "F", ["a"], ["b"], [helper.make_node("Sqrt", ["a"], ["b"])], opsets[:1])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)

    read = ir.from_proto(model)
    nodes = nodes_with_ids(read)
    document = build_document(
        strategy="fx",
        exporter="none",
        graph_hash=graph_hash(read),
        view=TagView(),
        tree=ModuleTree({"": ModuleInfo("", "Net", "my.Net")}),
        calls=CallTree({}),
        nodes=[(identity, operation(node), recorded_by_exporter(ROOT_CALL)) for identity, node in nodes],
        graph_tensors=tensors_with_ids(read, nodes),
    )
    _assert_complete(document, model)
    assert {"z/then_branch/inner/then_branch/deep", "my::F/a"} <= {tensor.id for tensor in document.tensors}
