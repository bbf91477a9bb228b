"""`compare` on exported models and rewrites of them: the nodes and modules that differ."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.comparing import by_module, chain, compared, consistent, fates, renamed, saved, two_branches
from torch import nn

import modelexport
from modelexport.analysis.comparison.model_comparison import compare_models
from modelexport.errors import FileFormatError
from modelexport.storage.transaction import sidecar_path

MODELS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("bert", "cnn", "shared_block", "cond")]


# --- before and after --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_model_is_the_same_as_itself(exported: Exporter, name: str) -> None:
    path = exported(name).path
    found = compare_models(path, path)
    consistent(found)
    assert found.same
    assert found.same_topology
    assert found.same_order
    assert found.differences == ()
    assert found.nodes.same == found.before.nodes == len(exported(name).document.nodes)
    assert found.before.hierarchy == "sidecar"
    assert by_module(found) == {}
    assert found.first_difference is None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("hierarchy", ["kept", "gone"])
def test_only_names_differ_if_all_names_are_changed(
    exported: Exporter, tmp_path: Path, name: str, hierarchy: str
) -> None:
    path = exported(name).path
    model = renamed(onnx.load(path))
    if hierarchy == "gone":
        model = modelexport.strip_hierarchy(model)
        for node in model.graph.node:
            del node.metadata_props[:]
    found = compare_models(path, saved(model, tmp_path / "renamed.onnx"))
    consistent(found)
    assert found.same_topology
    assert found.same
    assert set(found.differences) <= {"names", "metadata"}
    assert "names" in found.differences
    assert found.nodes.same == found.before.nodes
    assert found.nodes.renamed > found.before.nodes // 2


@pytest.mark.xdist_group("bert")
def test_interface_differs_when_an_input_is_renamed(exported: Exporter, tmp_path: Path) -> None:
    path = exported("bert").path
    model = onnx.load(path)
    old = model.graph.input[0].name
    model.graph.input[0].name = "tokens"
    for node in model.graph.node:
        node.input[:] = ["tokens" if name == old else name for name in node.input]
    found = compare_models(path, saved(model, tmp_path / "m.onnx"))
    assert found.same_topology
    assert not found.same
    assert [change.field for change in found.interface] == ["input 0"]


@pytest.mark.xdist_group("bert")
def test_unoptimized_export_has_more_nodes_and_loses_none(exported: Exporter) -> None:
    found = compare_models(exported("bert").path, exported("bert", optimize=False).path)
    consistent(found)
    assert not found.same_topology
    # Every node that the optimizer kept is found again; the rest is what it removed.
    assert found.nodes.removed == 0
    assert found.nodes.same >= found.before.nodes - 1
    assert found.nodes.added == found.after.nodes - found.before.nodes
    module = by_module(found)["embeddings.dropout"]
    assert (module.nodes_before, module.added, module.class_name) == (0, 1, "Dropout")
    assert fates(found)["embeddings.dropout", "added"] == {"Identity": 1}
    # And back.
    back = compare_models(exported("bert", optimize=False).path, exported("bert").path)
    assert (back.nodes.added, back.nodes.removed) == (0, found.nodes.added)


@pytest.mark.xdist_group("cnn")
def test_fused_normalization_is_removed_from_its_module(exported: Exporter) -> None:
    found = compare_models(exported("cnn", optimize=False).path, exported("cnn").path)
    consistent(found)
    for block in ("features.0", "features.2"):
        assert fates(found)[f"{block}.norm", "removed"]["BatchNormalization"] == 1
        # The convolution is still there, and does the work of both.
        assert fates(found)[f"{block}.conv", "moved"] == {"Conv": 1}
    assert found.nodes.added == 0
    owners = {change.after.module for change in found.changes if change.kind == "moved" and change.after is not None}
    assert owners == {"features.0.norm", "features.2.norm"}


@pytest.mark.xdist_group("bert")
def test_torchscript_export_is_matched_by_module_though_no_name_is_shared(exported: Exporter, tmp_path: Path) -> None:
    example = zoo.build("bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = modelexport.export_model(example.model, example.inputs, tmp_path / "ts.onnx", strategy="htp")
    found = compare_models(exported("bert").path, other.onnx_path)
    consistent(found)
    assert not found.same_topology
    assert found.nodes.moved == 0
    modules = {module.module: module for module in found.modules}
    for layer in (0, 1):
        # Each linear layer is a product and a sum for both exporters, whatever comes with them.
        for linear in ("attention.output.dense", "output.dense"):
            module = modules[f"encoder.layer.{layer}.{linear}"]
            assert module.removed == 0
            assert module.same + module.changed == module.nodes_before == 2
    assert {(change.field, change.after) for change in found.metadata} >= {("exporter", "torchscript")}
    assert "opsets" in found.differences


class Stack(nn.Module):
    def __init__(self, layers: int, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(zoo.Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder, made = tmp_path_factory.mktemp("stacks"), {}

    def export(layers: int, width: int = 8) -> Path:
        if (layers, width) not in made:
            torch.manual_seed(0)
            path = folder / f"stack_{layers}_{width}.onnx"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                modelexport.export_model(Stack(layers, width).eval(), torch.randn(4, width), path)
            made[layers, width] = path
        return made[layers, width]

    return export


@pytest.mark.xdist_group("stacks")
@pytest.mark.parametrize("hierarchy", ["kept", "gone"])
def test_one_layer_more_is_all_that_is_added(stacks: Callable[..., Path], tmp_path: Path, hierarchy: str) -> None:
    before, after = stacks(2), stacks(3)
    if hierarchy == "gone":
        bare = [modelexport.strip_hierarchy(onnx.load(path)) for path in (before, after)]
        for model in bare:
            for node in model.graph.node:
                del node.metadata_props[:]
        before, after = (saved(model, tmp_path / f"{number}.onnx") for number, model in enumerate(bare))
    found = compare_models(before, after)
    consistent(found)
    layer = found.after.nodes - found.before.nodes
    assert layer >= 3
    assert (found.nodes.added, found.nodes.removed, found.nodes.changed) == (layer, 0, 0)
    assert found.nodes.same == found.before.nodes
    if hierarchy == "kept":
        assert set(by_module(found)) == {"blocks.2", "blocks.2.lin", "blocks.2.norm"}
        assert found.first_difference is not None
        assert found.first_difference.module == "blocks.2.lin"
    else:
        assert found.before.hierarchy == "none"
        assert [module.module for module in found.modules] == [""]


@pytest.mark.xdist_group("stacks")
def test_wider_layers_are_changed_in_place(stacks: Callable[..., Path]) -> None:
    found = compare_models(stacks(2), stacks(2, 16))
    consistent(found)
    assert (found.nodes.added, found.nodes.removed, found.nodes.moved) == (0, 0, 0)
    assert found.nodes.changed == found.before.nodes
    gemm = next(change for change in found.changes if change.module == "head")
    assert set(gemm.what) == {"weights"}
    assert "float[3, 8]" in {change.detail.partition(" → ")[0] for change in found.weights}
    assert {"shape", "weights"} == {what for change in found.changes for what in change.what}
    assert found.after.weights.elements > 2 * found.before.weights.elements


# --- what other tools write --------------------------------------------------------------------------------------


@pytest.mark.xdist_group("bert")
def test_quantized_model_changes_exactly_the_modules_with_weights(exported: Exporter, tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    path, quantized = exported("bert").path, tmp_path / "quantized.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(path, quantized)
    found = compare_models(path, quantized)
    consistent(found)
    linear = {module.path for module in exported("bert").document.modules if module.class_name == "Linear"}
    # A query, a key and a value that read one tensor have it quantized once, in the module around them.
    around = {f"encoder.layer.{layer}.attention.self" for layer in (0, 1)}
    embeddings = {f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type")}
    assert set(by_module(found)) == linear | around | embeddings
    for path_ in linear:
        lost, won = fates(found)[path_, "removed"], fates(found)[path_, "added"]
        assert lost.total() == 1
        assert lost.keys() <= {"MatMul", "Gemm"}
        assert won["MatMulInteger"] == 1
    for path_ in around:
        assert fates(found)[path_, "added"] == {"DynamicQuantizeLinear": 1}
    for path_ in embeddings:
        assert fates(found)[path_, "changed"] == {"Gather": 1}
    assert found.before.weights.bytes > 3 * found.after.weights.bytes
    assert found.after.weights.bytes_by_type["int8" if "int8" in found.after.weights.bytes_by_type else "uint8"] > 0
    assert found.after.hierarchy == "tags"
    assert found.after.unowned > 0


@pytest.mark.xdist_group("cnn")
@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
def test_optimization_by_onnxruntime_changes_only_the_modules_of_the_changed_nodes(
    exported: Exporter, tmp_path: Path, level: str
) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    path = exported("cnn").path
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = compare_models(path, tmp_path / "optimized.onnx")
    consistent(found)
    if level == "ORT_ENABLE_BASIC":
        assert found.nodes.changed == found.nodes.moved == 0
        return
    removed = Counter(op for (_, kind), ops in fates(found).items() if kind == "removed" for op in ops.elements())
    added = Counter(op for (_, kind), ops in fates(found).items() if kind == "added" for op in ops.elements())
    # Each convolution and the activation behind it became one node.
    assert removed["Relu"] == added["com.microsoft::FusedConv"] == 2
    assert "head" not in by_module(found)


@pytest.mark.xdist_group("bert")
def test_plain_torch_export_is_the_same_model(exported: Exporter, tmp_path: Path) -> None:
    model = modelexport.strip_hierarchy(onnx.load(exported("bert").path))
    found = compare_models(exported("bert").path, saved(model, tmp_path / "plain.onnx"))
    consistent(found)
    assert found.same
    assert found.after.hierarchy == "torch metadata"
    assert found.differences == ("metadata",)


# --- single changes ----------------------------------------------------------------------------------------------


def test_inserted_removed_and_replaced_nodes_are_distinguished(tmp_path: Path) -> None:
    base = chain("Relu", "Neg", "Exp", "Tanh")
    inserted = compared(tmp_path, base, chain("Relu", "Neg", "Abs", "Exp", "Tanh"))
    assert [(c.kind, c.after and c.after.operation) for c in inserted.changes] == [("added", "Abs")]
    removed = compared(tmp_path, base, chain("Relu", "Exp", "Tanh"))
    assert [(c.kind, c.before and c.before.operation) for c in removed.changes] == [("removed", "Neg")]
    replaced = compared(tmp_path, base, chain("Relu", "Neg", "Abs", "Tanh"))
    assert [(c.kind, c.what, c.detail) for c in replaced.changes] == [("changed", ("operation",), "Exp → Abs")]
    assert replaced.first_difference == replaced.changes[0]
    assert replaced.first_difference.before is not None
    assert replaced.first_difference.before.position == 2


def test_attributes_count_unless_they_have_the_default_value(tmp_path: Path) -> None:
    plain = chain("Relu", "Softmax", "Neg")
    spelled = compared(tmp_path, plain, chain("Relu", "Softmax", "Neg", Softmax={"axis": -1}))
    assert spelled.same
    changed = compared(tmp_path, plain, chain("Relu", "Softmax", "Neg", Softmax={"axis": 0}))
    assert [(c.what, c.detail) for c in changed.changes] == [(("attributes",), "axis unset → 0")]
    assert not changed.same_topology


def test_rewired_node_is_changed_and_another_order_of_nodes_is_not(tmp_path: Path) -> None:
    crossed = compared(tmp_path, two_branches(), two_branches(crossed=True))
    assert [(c.kind, c.what) for c in crossed.changes] == [("changed", ("inputs",))]
    reordered = two_branches()
    nodes = [reordered.graph.node[position] for position in (1, 0, 2)]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del reordered.graph.node[:]
    reordered.graph.node.extend(nodes)
    found = compared(tmp_path, two_branches(), reordered)
    assert found.same
    assert found.same_topology
    assert not found.same_order


@pytest.mark.xdist_group("shared_block")
def test_node_with_another_owner_is_moved_and_nothing_else_differs(exported: Exporter, tmp_path: Path) -> None:
    path = exported("shared_block").path
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(path.read_bytes())
    document = json.loads(sidecar_path(path).read_text())
    node = next(node for node in document["nodes"] if node["module"] == "blk.lin@1")
    node["module"] = "blk@1"
    sidecar_path(moved).write_text(json.dumps(document))
    found = compare_models(path, moved)
    consistent(found)
    assert found.differences == ("ownership",)
    assert found.same_topology
    assert [(c.kind, c.module, c.after and c.after.module) for c in found.changes] == [("moved", "blk.lin@1", "blk@1")]


# --- weights -----------------------------------------------------------------------------------------------------


def weighted(folder: Path, name: str, content: np.ndarray, *, external: bool) -> Path:
    model = chain("Relu")
    model.graph.node.append(helper.make_node("Add", ["v0", "w"], ["y"]))
    model.graph.output[0].name = "y"
    model.graph.initializer.append(onnx.numpy_helper.from_array(content, "w"))
    path = folder / f"{name}.onnx"
    onnx.save(
        model, path, save_as_external_data=external, location=f"{name}.data", size_threshold=0, convert_attribute=False
    )
    return path


@pytest.mark.parametrize("external", [False, True])
def test_contents_of_weights_are_compared_only_on_request(tmp_path: Path, external: bool) -> None:
    content = np.arange(1_500_000, dtype=np.float32)
    changed = content.copy()
    changed[-3] += 0.5
    before = weighted(tmp_path, "before", content, external=external)
    after = weighted(tmp_path, "after", changed, external=not external)
    assert compare_models(before, after).same
    found = compare_models(before, after, contents=True)
    assert found.contents is not None
    assert (found.contents.compared, found.contents.different) == (1, 1)
    assert found.contents.weights[0].largest_difference == 0.5
    assert found.differences == ("weights",)
    equal = compare_models(before, weighted(tmp_path, "copy", content, external=not external), contents=True)
    assert equal.same
    if external:
        (tmp_path / "before.data").unlink()
        assert compare_models(before, after).same
        with pytest.raises(FileFormatError, match=r"external data for weight 'w', and .* does not exist"):
            compare_models(before, after, contents=True)


def test_small_inline_weights_are_always_compared(tmp_path: Path) -> None:
    before = weighted(tmp_path, "before", np.zeros((2, 3), np.float32), external=False)
    after = weighted(tmp_path, "after", np.ones((2, 3), np.float32), external=False)
    found = compare_models(before, after)
    assert found.same_topology
    assert found.differences == ("weights",)
    assert [(w.kind, w.before) for w in found.weights] == [("values", "w")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(["a", "b"], ["a", "a longer string"], id="other lengths"),
        pytest.param(["a", "b\0c"], ["a\0b", "c"], id="same bytes in other elements"),
        pytest.param(["x" * 2**21, "b"], ["x" * 2**21, "c"], id="large"),
    ],
)
def test_strings_of_weights_are_compared_element_by_element(
    tmp_path: Path, before: list[str], after: list[str]
) -> None:
    def with_strings(name: str, strings: list[str]) -> Path:
        model = chain("Relu")
        model.graph.initializer.append(helper.make_tensor("labels", onnx.TensorProto.STRING, [2], strings))
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        return path

    first, second = with_strings("before", before), with_strings("after", after)
    found = compare_models(first, second, contents=True)
    assert found.contents is not None
    assert (found.contents.compared, found.contents.different) == (1, 1)
    assert found.contents.weights[0].largest_difference is None
    assert found.differences == ("weights",)
    assert compare_models(first, with_strings("copy", before), contents=True).same
