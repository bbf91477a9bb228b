"""The hierarchy after every tool that rewrites ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16
from tests.conftest import Exporter
from tests.support import rewriting
from tests.support.extraction_check import eager_truth, judge_extractions

import modelexport
from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.retagging.retagger import RetagReport, retag

pytestmark = pytest.mark.integration

Retagged = Callable[[str, str], tuple[Path, RetagReport]]


@pytest.fixture
def retagged(exported: Exporter, tmp_path: Path) -> Retagged:
    def run(name: str, tool: str) -> tuple[Path, RetagReport]:
        rewritten = tmp_path / "rewritten.onnx"
        rewriting.rewrite(tool, exported(name).path, rewritten, exported(name).feeds)
        return rewritten, retag(rewritten, exported(name).path, tmp_path / "retagged.onnx")

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tool", rewriting.TOOLS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in rewriting.MODELS])
def test_owner_of_every_node_is_a_related_module_and_unchanged_nodes_keep_theirs(
    exported: Exporter, retagged: Retagged, name: str, tool: str
) -> None:
    rewritten, report = retagged(name, tool)
    verdict = rewriting.judge(exported(name).path, exported(name).document, rewritten, report.document)
    assert verdict.unowned == []
    assert verdict.moved == []
    assert verdict.unrelated == []
    assert report.document.coverage == 1.0
    assert report.exact + report.projected + report.inferred == verdict.nodes
    assert report.tensors_kept <= report.tensors_before


@pytest.mark.xdist_group("resnet")
@pytest.mark.filterwarnings("ignore")
def test_nodes_in_another_memory_layout_have_the_owners_of_the_nodes_that_they_replace(retagged: Retagged) -> None:
    _, report = retagged("resnet", "onnxruntime all")
    calls = report.document.calls
    others = {tensor.tensor or tensor.stand_in for call in calls for tensor in (*call.inputs, *call.outputs)}
    assert {node.kind for node in report.document.nodes} == {"exact", "fused"}
    # Each is of a few modules of one block; and no call begins or ends at a tensor in that layout.
    assert max(len(node.contributors) for node in report.document.nodes) <= 4
    assert not any(name and name.startswith("reorder") for name in others)


@pytest.mark.xdist_group("bert")
@pytest.mark.filterwarnings("ignore")
def test_retag_changes_only_the_metadata_of_a_file(exported: Exporter, retagged: Retagged) -> None:
    rewritten, report = retagged("bert", "onnxruntime extended")
    plain = modelexport.strip_hierarchy(onnx.load(rewritten))
    written = report.files[0]
    assert modelexport.strip_hierarchy(onnx.load(written)) == plain
    groups = [node.metadata_props for node in onnx.load(written).graph.node]
    assert all("namespace" in {entry.key for entry in entries} for entries in groups)
    loaded = modelexport.load(written)
    assert loaded.document == report.document
    assert {identity: stored.module for identity, stored in loaded.stored.items()} == {
        node.id: node.module for node in report.document.nodes
    }


@pytest.mark.xdist_group("resnet")
@pytest.mark.filterwarnings("ignore")
def test_convolution_fused_with_norm_and_activation_names_all_three(exported: Exporter, retagged: Retagged) -> None:
    _, report = retagged("resnet", "onnxruntime extended")
    fused = [node for node in report.document.nodes if node.op.endswith("FusedConv")]
    assert fused
    classes = {call.id: call.tag for call in report.document.calls}
    modules = {module.path: module.class_name for module in report.document.modules}
    for node in fused:
        calls = [call for call in report.document.calls if call.id in (node.module, *node.contributors)]
        assert {"Conv2d", "BatchNorm2d", "ReLU"} <= {modules[call.path] for call in calls}, classes[node.module]


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed sizes", "dynamic axes"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in rewriting.MODELS])
def test_document_is_the_same_after_a_copy_is_retagged(
    exported: Exporter, tmp_path: Path, name: str, dynamic: bool
) -> None:
    ours = exported(name, dynamic=dynamic)
    report = retag(plain_copy(ours.path, tmp_path / "copy.onnx"), ours.path, overwrite=True)
    # A copy names another tool and other evidence, and has no notes on an export.
    changed = {name: getattr(report.document, name) for name in ("strategy", "exporter", "notes")}
    assert report.document == msgspec.structs.replace(ours.document, **changed)
    assert report.tensors_kept == report.tensors_before


def plain_copy(source: Path, target: Path) -> Path:
    onnx.save(modelexport.strip_hierarchy(onnx.load(source)), target)
    return target


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("bert", "gpt2")])
def test_calls_whose_arguments_were_replaced_extract_from_a_retagged_copy_as_from_the_export(
    exported: Exporter, tmp_path: Path, name: str
) -> None:
    ours = exported(name, dynamic=True)
    retag(plain_copy(ours.path, tmp_path / "copy.onnx"), ours.path, overwrite=True)
    assert any(tensor.stand_in is not None for call in ours.document.calls for tensor in call.inputs)
    truth = eager_truth(ours.example.model, ours.args, ours.kwargs)
    of_export, of_copy = (judge_extractions(p, truth, ours.feeds) for p in (ours.path, tmp_path / "copy.onnx"))
    assert of_copy == of_export
    assert any(outcome.status == "equal" and not outcome.complete for outcome in of_copy)


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("tool", ["quantize_dynamic", "onnxruntime basic", "onnxruntime extended"])
def test_boundaries_are_kept_after_quantization_and_optimization(exported: Exporter, tmp_path: Path, tool: str) -> None:
    ours = exported("bert", dynamic=True)
    rewriting.rewrite(tool, ours.path, tmp_path / "rewritten.onnx", ours.feeds)
    report = retag(tmp_path / "rewritten.onnx", ours.path, tmp_path / "retagged.onnx")
    replaced = [known_inputs(document)[1] for document in (ours.document, report.document)]
    assert replaced[0]
    assert replaced[1] >= replaced[0]
    if tool != "onnxruntime extended":
        # Fusion removes tensors that nothing replaces.
        assert known_inputs(report.document)[0] == known_inputs(ours.document)[0]
        refused = [refused_calls(path) for path in (ours.path, tmp_path / "retagged.onnx")]
        assert refused[1] == refused[0]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        pytest.param("bert", "onnxslim", marks=pytest.mark.xdist_group("bert")),
        pytest.param("gpt2", "onnxsim", marks=pytest.mark.xdist_group("gpt2")),
    ],
)
def test_extracted_calls_are_right_after_a_tool_moved_reshapes_past_kept_names(
    exported: Exporter, retagged: Retagged, name: str, tool: str
) -> None:
    ours = exported(name)
    _, report = retagged(name, tool)
    truth = eager_truth(ours.example.model, ours.args, ours.kwargs)
    outcomes = judge_extractions(report.files[0], truth, ours.feeds)
    assert [outcome for outcome in outcomes if outcome.status == "differs"] == []
    assert sum(outcome.status == "equal" for outcome in outcomes) > len(outcomes) / 2


@pytest.mark.xdist_group("bert")
@pytest.mark.filterwarnings("ignore")
def test_retagged_file_is_valid_where_a_converter_left_unsorted_nodes_and_old_types(
    exported: Exporter, tmp_path: Path
) -> None:
    ours, rewritten = exported("bert"), tmp_path / "mixed.onnx"
    model = onnx.load(ours.path)
    kept = [node.name for node in model.graph.node if node.op_type == "Softmax"]
    converted = convert_float_to_float16(model, keep_io_types=True, node_block_list=kept)
    for value in converted.graph.value_info:
        # As some versions of the converter leave it.
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(converted, rewritten)
    assert not modelexport.validate(rewritten).is_valid
    report = retag(rewritten, ours.path, tmp_path / "retagged.onnx")
    assert [note.split()[:3] for note in report.notes] == [["the", "nodes", "of"], ["corrected", "the", "element"]]
    assert modelexport.validate(report.files[0]).findings == ()
    before, after = (modelexport.strip_hierarchy(onnx.load(path)) for path in (rewritten, report.files[0]))
    for graph in (before.graph, after.graph):
        del graph.value_info[:]
        nodes = sorted(graph.node, key=lambda node: node.output[0])
        del graph.node[:]
        graph.node.extend(nodes)
    assert before == after
    inputs = ours.example.inputs
    found = modelexport.verify_modules(report.files[0], ours.example.model, inputs, select="class:BertSelfAttention")
    assert "invalid_graph" not in {call.reason for call in found.calls}


def known_inputs(document: modelexport.HierarchyDocument) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The arguments of calls that the graph has, and those that another tensor replaces."""
    arguments = [(call.id, tensor) for call in document.calls for tensor in call.inputs]
    return (
        {(call, tensor.name) for call, tensor in arguments if tensor.tensor is not None},
        {(call, tensor.name) for call, tensor in arguments if tensor.stand_in is not None},
    )


def refused_calls(path: Path) -> set[str]:
    extractor = Extractor(path)
    refused = set()
    for call in extractor.document.calls:
        try:
            extractor.extract(call)
        except modelexport.ExtractionError:
            refused.add(call.id)
    return refused


@pytest.mark.xdist_group("bert")
def test_file_of_another_model_is_refused(exported: Exporter, tmp_path: Path) -> None:
    stranger = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2] q) => (float[2] r) { r = Relu(q) }'
    )
    path = tmp_path / "stranger.onnx"
    onnx.save(stranger, path)
    with pytest.raises(modelexport.InputError, match=r"another model.*--by-value"):
        retag(path, exported("bert").path, overwrite=True)
    assert onnx.load(path) == stranger


@pytest.mark.xdist_group("bert")
def test_tagged_file_without_hierarchy_is_refused(exported: Exporter, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    onnx.save(modelexport.strip_hierarchy(onnx.load(exported("bert").path)), plain)
    with pytest.raises(modelexport.FileFormatError, match="no hierarchy"):
        retag(exported("bert").path, plain, tmp_path / "out.onnx")
