"""Extracted modules return the outputs of the PyTorch modules, or are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tests.conftest import Exported, Exporter
from tests.support import zoo
from tests.support.eager_calls import record_calls
from tests.support.extraction_check import eager_truth, judge_extractions, run_submodel

import modelexport
from modelexport.analysis.extraction.submodel_files import write_submodel
from modelexport.errors import ExtractionError, InputError

pytestmark = pytest.mark.integration

# Small ones of each kind here; `make extraction` judges every model and conformance case.
_JUDGED = ("bert", "cnn", "shared_block", "nested_outputs", "no_grad", "cond", "lstm")


def _run(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in _JUDGED])
def test_every_extracted_call_returns_the_outputs_of_pytorch_or_is_refused_as_fused(
    exported: Exporter, name: str, optimize: bool
) -> None:
    ours = exported(name, optimize=optimize)
    truth = eager_truth(ours.example.model, ours.args, ours.kwargs)
    outcomes = judge_extractions(ours.path, truth, ours.feeds)
    assert outcomes
    assert [outcome for outcome in outcomes if outcome.status == "differs"] == []
    refused = [outcome for outcome in outcomes if outcome.status == "refused"]
    assert all(outcome.reason == "fused" and not outcome.complete for outcome in refused)
    if not optimize:
        assert refused == []


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("bert", "aliased")])
def test_modules_are_extracted_from_files_of_the_torchscript_exporter(tmp_path: Path, name: str) -> None:
    example = zoo.build(name)
    result = modelexport.export_model(example.model, example.inputs, tmp_path / "m.onnx", strategy="htp")
    ours = Exported(example, result, {})
    outcomes = judge_extractions(ours.path, eager_truth(example.model, ours.args, ours.kwargs), ours.feeds)
    assert len(outcomes) > 10
    assert {outcome.status for outcome in outcomes} == {"equal"}


# --- the layers of a BERT ----------------------------------------------------------------------------------------


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
def test_chained_layers_of_bert_compute_the_output_of_the_model(exported: Exporter, optimize: bool) -> None:
    ours = exported("bert", optimize=optimize)
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    mask = eager["encoder.layer.0"].inputs["attention_mask"].astype(bool)
    hidden = _run(modelexport.extract_module(ours.path, "embeddings"), {"input_ids": ours.feeds["input_ids"]})["output"]
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        model = modelexport.extract_module(ours.path, layer)
        hidden = _run(model, {"hidden_states": hidden, "attention_mask": mask})["output"]
    pooled = _run(modelexport.extract_module(ours.path, "pooler"), {"hidden_states": hidden})["output"]
    session = onnxruntime.InferenceSession(ours.path, providers=["CPUExecutionProvider"])
    whole = session.run(None, ours.feeds)
    np.testing.assert_allclose(hidden, whole[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pooled, whole[1], rtol=1e-4, atol=1e-5)


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
def test_dynamic_axes_stay_dynamic(exported: Exporter, optimize: bool) -> None:
    ours = exported("bert", dynamic=True, optimize=optimize)
    submodel = modelexport.Extractor(ours.path).extract("encoder.layer.1")
    assert [port.argument for port in submodel.inputs] == ["hidden_states", "attention_mask"]
    layer = ours.example.model.encoder.layer[1]
    for batch, length in ((3, 5), (1, 11)):
        hidden = torch.randn(batch, length, 32)
        mask = torch.ones(batch, 1, length, length, dtype=torch.bool)
        mask[0, :, :, -2:] = False
        with torch.no_grad():
            expected = layer(hidden, attention_mask=mask)
        made = run_submodel(submodel, {"hidden_states": hidden.numpy(), "attention_mask": mask.numpy()})
        np.testing.assert_allclose(made["output"], expected.numpy(), rtol=1e-3, atol=1e-5)


# --- calls, aliases, bodies --------------------------------------------------------------------------------------


@pytest.mark.xdist_group("shared_block")
def test_each_call_of_a_shared_block_is_extracted_as_its_own_model(exported: Exporter) -> None:
    ours = exported("shared_block")
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    for call in ("blk", "blk@1", "blk@2"):
        made = _run(modelexport.extract_module(ours.path, call), {"x": eager[call].inputs["x"]})
        np.testing.assert_allclose(made["output"], eager[call].outputs["output"], rtol=1e-4, atol=1e-5)
    with pytest.raises(ExtractionError, match=r"called 3 times, the last is 'blk@2'") as refusal:
        modelexport.extract_module(ours.path, "blk@3")
    assert refusal.value.reason == "never_called"


@pytest.mark.xdist_group("aliased")
def test_alias_extracts_its_module(exported: Exporter) -> None:
    ours = exported("aliased")
    extractor = modelexport.Extractor(ours.path)
    assert extractor.find("second@1").id == "first@1"
    assert extractor.find("list.0@2").id == "first@2"
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    made = run_submodel(extractor.extract("second@1"), {"x": eager["first@1"].inputs["x"]})
    np.testing.assert_allclose(made["output"], eager["first@1"].outputs["output"], rtol=1e-4, atol=1e-5)


@pytest.mark.xdist_group("cond")
@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
def test_module_in_a_branch_is_extracted(exported: Exporter, optimize: bool) -> None:
    ours = exported("cond", optimize=optimize)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    for path in ("yes", "no", "yes.lin"):
        submodel = modelexport.Extractor(ours.path).extract(path)
        (port,) = submodel.inputs
        with torch.no_grad():
            expected = ours.example.model.get_submodule(path)(torch.from_numpy(x))
        made = run_submodel(submodel, {port.name: x})
        np.testing.assert_allclose(made["output"], expected.numpy(), rtol=1e-3, atol=1e-5)
    whole = modelexport.extract_module(ours.path, "")
    assert any(node.op_type == "If" for node in whole.graph)
    np.testing.assert_allclose(
        next(iter(_run(whole, {"x": ours.feeds["x"]}).values())),
        onnxruntime.InferenceSession(ours.path).run(None, ours.feeds)[0],
        rtol=1e-5,
    )


# --- what the submodel is ----------------------------------------------------------------------------------------


@pytest.mark.xdist_group("bert")
def test_submodel_keeps_calls_and_tags_and_can_be_loaded(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    submodel = modelexport.Extractor(ours.path).extract("encoder.layer.0")
    files = write_submodel(submodel, tmp_path / "layer.onnx")
    onnx.checker.check_model(files[0], full_check=True)
    loaded = modelexport.load(files[0])
    assert loaded.missing == ""
    assert loaded.document == submodel.document
    assert loaded.document.extracted.call == "encoder.layer.0"
    assert loaded.document.extracted.source_graph_hash == ours.document.graph_hash
    whole = {node.id: node for node in ours.document.nodes}
    below = [node for node in loaded.document.nodes if node.module.startswith("encoder.layer.0")]
    assert len(below) > 20
    same = [node for node in loaded.document.nodes if node.id in whole]
    assert len(same) >= len(loaded.document.nodes) - len(submodel.outputs) - len(submodel.inputs)
    assert all(node.tag == whole[node.id].tag and node.module == whole[node.id].module for node in same)
    assert {stored.hierarchy_path for stored in loaded.stored.values()} == {n.tag for n in loaded.document.nodes}
    # A module can be extracted from a submodel.
    again = modelexport.extract_module(files[0], "encoder.layer.0.attention.self.query")
    assert [value.name for value in again.graph.inputs] == ["input"]
    assert (
        modelexport.validate(files[0]).exit_code == 0 if hasattr(modelexport.validate(files[0]), "exit_code") else True
    )


@pytest.mark.xdist_group("nested_outputs")
def test_inputs_and_outputs_have_the_names_of_arguments_and_fields(exported: Exporter) -> None:
    submodel = modelexport.Extractor(exported("nested_outputs").path).extract("inner")
    assert [port.name for port in submodel.inputs] == ["pair.0", "pair.1", "scale"]
    assert [port.name for port in submodel.outputs] == ["logits", "states.0", "states.1", "extra.squared"]
    assert submodel.notes == ("the graph does not compute the result 'extra.unused'",)


class _Edge(torch.nn.Module):
    """A module with unusual arguments and results."""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(6.0))

        def forward(
            self, x: torch.Tensor, again: torch.Tensor, weight: torch.Tensor, unused: torch.Tensor, number: int
        ) -> dict[str, Any]:
            return {
                "x": x,
                "sum": x * weight + again * number,
                "table": self.table,
                "same": again,
                "nothing": None,
            }

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()
        self.weight = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        made = self.inner(y, y, self.weight, torch.exp(y), 3)
        return made["x"] + made["sum"] + made["table"] + made["same"] + torch.exp(y)


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_returned_repeated_constant_and_unused_arguments_are_inputs_and_outputs(tmp_path: Path, strategy: str) -> None:
    model, x = _Edge().eval(), torch.randn(2, 6)
    path = tmp_path / "edge.onnx"
    modelexport.export_model(model, (x,), path, strategy=strategy, optimize=False)
    submodel = modelexport.Extractor(path).extract("inner")
    arguments = [port.argument for port in submodel.inputs]
    assert arguments[:2] == ["x", "again"]
    assert {port.argument for port in submodel.outputs} == {"x", "sum", "table", "same"}
    names = [port.name for port in (*submodel.inputs, *submodel.outputs)]
    assert len(set(names)) == len(names)
    y = torch.tanh(x)
    given = {"x": y, "again": y, "weight": model.weight.detach(), "unused": torch.exp(y)}
    made = run_submodel(submodel, {p.name: given[p.argument].numpy() for p in submodel.inputs})
    with torch.no_grad():
        expected = model.inner(y, y, model.weight, torch.exp(y), 3)
    for port in submodel.outputs:
        np.testing.assert_allclose(made[port.name], expected[port.argument].numpy(), rtol=1e-4, atol=1e-6)


class _Closure(torch.nn.Module):
    """A module that consumes a tensor that is not an argument."""

    class Reader(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.seen

    def __init__(self) -> None:
        super().__init__()
        self.reader = self.Reader()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.reader.seen = torch.sin(y)
        return self.reader(x + 1)


def test_tensor_that_is_not_an_argument_becomes_an_additional_input(tmp_path: Path) -> None:
    path = tmp_path / "closure.onnx"
    x, y = torch.randn(3), torch.randn(3)
    modelexport.export_model(_Closure().eval(), (x, y), path, strategy="fx")
    submodel = modelexport.Extractor(path).extract("reader")
    assert [port.argument for port in submodel.inputs] == ["x", None]
    assert "not among its arguments" in submodel.notes[0]
    further = submodel.inputs[1].name
    made = run_submodel(submodel, {"x": (x + 1).numpy(), further: torch.sin(y).numpy()})
    np.testing.assert_allclose(made["output"], ((x + 1) * torch.sin(y)).numpy(), rtol=1e-5)


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("cnn")
@pytest.mark.parametrize(
    ("target", "fused_with"), [("features.0.norm", "features.0.conv"), ("features.0.conv", "features.0.norm")]
)
def test_refusal_of_a_fused_module_names_the_other_module_and_what_can_be_extracted(
    exported: Exporter, target: str, fused_with: str
) -> None:
    with pytest.raises(ExtractionError, match="fused with") as refusal:
        modelexport.extract_module(exported("cnn").path, target)
    assert refusal.value.reason == "fused"
    assert refusal.value.fused_with == (fused_with,)
    assert refusal.value.enclosing == "features.0"
    assert "'features.0'" in str(refusal.value)
    modelexport.extract_module(exported("cnn").path, refusal.value.enclosing)


@pytest.mark.xdist_group("cnn")
@pytest.mark.parametrize(
    ("target", "reason", "words"),
    [
        ("dropout", "no_operation", "ran no operation"),
        ("featurs.0", "unknown", "did you mean 'features.0'"),
        ("ConvBlock", "several", "picks 2 calls: 'features.0', 'features.2'"),
        ("class:ConvBlock", "several", "picks 2 calls"),
        ("class:Nothing", "unknown", "class:Nothing"),
    ],
)
def test_refusal_has_a_reason_and_an_explanation(exported: Exporter, target: str, reason: str, words: str) -> None:
    with pytest.raises(ExtractionError, match=words) as refusal:
        modelexport.extract_module(exported("cnn").path, target)
    assert refusal.value.reason == reason
    assert isinstance(refusal.value, modelexport.ModelExportError)


def test_module_that_was_never_called_is_refused(tmp_path: Path) -> None:
    from tests.support.factories import net_with_inputs

    model, inputs = net_with_inputs()
    modelexport.export_model(model, inputs, tmp_path / "net.onnx", strategy="fx")
    with pytest.raises(ExtractionError, match="never called") as refusal:
        modelexport.extract_module(tmp_path / "net.onnx", "unused")
    assert refusal.value.reason == "never_called"


@pytest.mark.xdist_group("cnn")
def test_tag_and_pattern_select_a_call(exported: Exporter) -> None:
    extractor = modelexport.Extractor(exported("cnn").path)
    tag = next(call.tag for call in extractor.document.calls if call.id == "features.2")
    assert extractor.find(tag).id == "features.2"
    assert extractor.find("class:MaxPool2d").id == "features.1"
    assert extractor.find("MaxPool2d").id == "features.1"


# --- subgraphs and sources ---------------------------------------------------------------------------------------


@pytest.mark.xdist_group("shared_block")
def test_subgraph_has_operations_inputs_and_tensors(exported: Exporter) -> None:
    ours = exported("shared_block")
    sidecar = ours.result.sidecar_path
    forms: list[Any] = [ours.document, json.loads(sidecar.read_bytes()), sidecar, str(sidecar), None]
    found = [modelexport.extract_module_subgraph(ours.path, form, "blk@1") for form in forms]
    assert all(one == found[0] for one in found)
    subgraph = found[0]
    owned = {node.id for node in ours.document.nodes if node.module.startswith("blk") and node.module.endswith("@1")}
    assert set(subgraph["operations"]) == owned
    assert subgraph["external_inputs"] == subgraph.external_inputs
    assert len(subgraph.external_inputs) == 1
    assert set(subgraph.boundary_operations) <= set(subgraph.operations)
    assert set(subgraph.internal_tensors).isdisjoint((*subgraph.external_inputs, *subgraph.outputs))
    assert "blk.lin.weight" in subgraph.weights
    by_model = modelexport.extract_module_subgraph(onnx.load(ours.path), ours.document, "blk@1")
    assert by_model == subgraph


@pytest.mark.xdist_group("shared_block")
def test_hierarchy_of_another_graph_is_refused(exported: Exporter) -> None:
    with pytest.raises(InputError, match="describes another graph"):
        modelexport.extract_module_subgraph(exported("shared_block").path, exported("aliased").document, "blk")


@pytest.mark.xdist_group("shared_block")
@pytest.mark.parametrize("target", ["blk@1", "out", "blk.norm@2"])
def test_module_is_extracted_by_node_metadata_without_a_sidecar(
    exported: Exporter, tmp_path: Path, target: str
) -> None:
    ours = exported("shared_block")
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(ours.path.read_bytes())
    submodel = modelexport.Extractor(alone).extract(target)
    assert "no sidecar" in submodel.notes[-1]
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)[target]
    (port,) = submodel.inputs
    made = run_submodel(submodel, {port.name: next(iter(eager.inputs.values()))})
    np.testing.assert_allclose(made["output"], eager.outputs["output"], rtol=1e-4, atol=1e-5)


@pytest.mark.xdist_group("shared_block")
def test_module_is_extracted_from_a_plain_torch_file_by_the_metadata_of_torch(exported: Exporter) -> None:
    ours = exported("shared_block")
    bare = modelexport.strip_hierarchy(onnx.load(ours.path))
    submodel = modelexport.Extractor(bare).extract("out")
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)["out"]
    (port,) = submodel.inputs
    made = run_submodel(submodel, {port.name: eager.inputs["input"]})
    np.testing.assert_allclose(made["output"], eager.outputs["output"], rtol=1e-4, atol=1e-5)


def test_model_without_any_hierarchy_is_refused() -> None:
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "bare", value[:1], value[1:])
    with pytest.raises(InputError, match="carries no hierarchy"):
        modelexport.extract_module(onnx.helper.make_model(graph), "blk")
