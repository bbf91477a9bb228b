"""Owners found by value are those that fx recorded, for any exporter and any tensor names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tests.conftest import Exporter, claims
from tests.support import zoo
from tests.support.eager_calls import record_calls
from tests.support.plain import export_plainly, fresh_generated_code
from tests.support.usage import Confusion, by_usage, stripped
from tests.support.value_check import judge, run_onnx

import modelexport
from modelexport.capture.by_value.attribution_by_value import ValueMatch
from modelexport.graph.node_ids import nodes_with_ids
from modelexport.strategies.registry import StrategyRegistry
from modelexport.strategies.usage_based import UsageBasedStrategy

pytestmark = pytest.mark.integration

_TRANSFORMERS = ("bert", "gpt2", "vit", "resnet", "albert", "transformer_encoder")
_SMALL = ("cnn", "lstm", "shared_block", "with_methods", "nested_outputs", "aliased", "no_grad")
_MODELS = (*_TRANSFORMERS, *_SMALL)
_SAME_OWNER = 0.9


def each(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in names])


Tagged = Callable[[str], tuple[ir.Model, ValueMatch]]


@pytest.fixture(scope="session")
def tagged(exported: Exporter) -> Tagged:
    """The file that fx exported, without its tags, attributed by usage."""

    @cache
    def attribute(name: str) -> tuple[ir.Model, ValueMatch]:
        graph = stripped(exported(name).path)
        return graph, by_usage(graph, exported(name).example)

    return attribute


# --- owners ----------------------------------------------------------------------------------------------------


@each(*_MODELS)
def test_owners_are_those_that_fx_recorded(exported: Exporter, tagged: Tagged, name: str) -> None:
    confusion = Confusion(name, *tagged(name), exported(name).document)
    print(confusion)  # noqa: T201  for whoever reads the test's output
    assert confusion.unrelated == []
    assert confusion.part_with_same_owner >= _SAME_OWNER


@each(*_MODELS)
def test_nothing_is_claimed_to_be_recorded(tagged: Tagged, name: str) -> None:
    graph, usage = tagged(name)
    assert usage.agrees
    for _, node in nodes_with_ids(graph):
        found = usage.attributions[node]
        assert found.kind != "exact"
        assert 0 < found.confidence < 1
        assert found.reason
        assert {found.owner, *found.contributors} <= {call.id for call in usage.calls}
        assert found.owner not in found.contributors


@each(*_MODELS)
def test_calls_are_those_that_fx_saw(exported: Exporter, tagged: Tagged, name: str) -> None:
    recorded = exported(name).document.calls
    found = list(tagged(name)[1].calls)
    assert [(str(call.id), call.parent and str(call.parent)) for call in found] == [(c.id, c.parent) for c in recorded]
    for one, other in zip(found, recorded, strict=True):
        # Eager PyTorch may leave out what tracing needs: a mask that masks nothing.
        assert {tensor.name for tensor in one.inputs} <= {tensor.name for tensor in other.inputs}
        assert [tensor.name for tensor in one.outputs] == [tensor.name for tensor in other.outputs]


@each(*_MODELS)
def test_boundary_tensors_are_the_inputs_and_outputs_of_the_module(
    exported: Exporter, tagged: Tagged, name: str
) -> None:
    ours = exported(name)
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    tensors = {**run_onnx(ours.path, ours.feeds), **ours.feeds}
    found = total = 0
    for call in tagged(name)[1].calls:
        seen = eager[str(call.id)]
        for boundaries, values in ((call.inputs, seen.inputs), (call.outputs, seen.outputs)):
            for boundary in boundaries:
                total += 1
                if boundary.tensor in tensors and boundary.name in values:
                    tensor = tensors[boundary.tensor].astype(np.float32)
                    expected = values[boundary.name]
                    np.testing.assert_allclose(tensor, expected, rtol=1e-3, atol=1e-4, err_msg=str(call.id))
                    found += 1
    print(f"{name:20} {found} of {total} boundary tensors found")  # noqa: T201  for whoever reads the test's output
    assert found >= 0.6 * total


@each("bert", "albert", "vit")
def test_boundary_is_the_tensor_that_crosses_it_where_others_have_equal_values(
    exported: Exporter, tagged: Tagged, name: str
) -> None:
    """A bias of zeros leaves two equal tensors inside a call: the one that others read is the result."""
    document = exported(name).document
    owners = {node.module for node in document.nodes}
    found = {str(call.id): call for call in tagged(name)[1].calls}
    leaves = [call for call in document.calls if call.id in owners and call.outputs]
    assert leaves
    for recorded in leaves:
        tensors = [tensor.tensor for tensor in found[recorded.id].outputs]
        assert all(tensor in (None, truth.tensor) for tensor, truth in zip(tensors, recorded.outputs, strict=True))


@each("bert", "resnet", "albert", "with_methods", "no_grad")
def test_no_node_is_owned_by_a_module_that_did_not_compute_it(exported: Exporter, tagged: Tagged, name: str) -> None:
    ours = exported(name)
    claimed = {
        value.name or "": tuple(str(call) for call in (found.owner, *found.contributors))
        for node, found in tagged(name)[1].attributions.items()
        for value in node.outputs
    }
    assert set(claimed) == set(claims(ours))
    verdict = judge(ours.path, claimed, ours.example.model, ours.args, ours.kwargs, ours.feeds)
    assert verdict.contaminated == ()
    assert verdict.judged >= 3


@each("bert", "resnet", "shared_block", "with_methods", "nested_outputs")
def test_names_in_the_file_decide_nothing(exported: Exporter, tagged: Tagged, name: str) -> None:
    graph = stripped(exported(name).path)
    values = [*graph.graph.inputs, *graph.graph.initializers.values()]
    values += [value for node in graph.graph.all_nodes() for value in node.outputs]
    for number, value in enumerate(values):
        value.name = f"t{number}"
    for number, node in enumerate(graph.graph.all_nodes()):
        node.name = f"n{number}"
    renamed = by_usage(graph, exported(name).example)
    expected = [tagged(name)[1].attributions[node] for _, node in nodes_with_ids(tagged(name)[0])]
    assert [renamed.attributions[node] for _, node in nodes_with_ids(graph)] == expected


@each("bert", "vit", "resnet", "cnn", "lstm", "shared_block", "with_methods", "transformer_encoder", "nested_outputs")
def test_owners_in_a_torchscript_file_are_those_that_htp_recorded(tmp_path: Path, name: str) -> None:
    example = zoo.build(name)
    result = modelexport.export_model(example.model, example.inputs, tmp_path / "model.onnx", strategy="htp")
    graph = stripped(result.onnx_path)
    confusion = Confusion(name, graph, by_usage(graph, example), result.document)
    print(confusion)  # noqa: T201  for whoever reads the test's output
    assert confusion.unrelated == []
    assert confusion.part_with_same_owner >= 0.75


@pytest.mark.xdist_group("bert")
def test_fused_nodes_of_an_optimizer_name_the_calls_they_work_for(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(ours.path, options, ["CPUExecutionProvider"])
    usage = by_usage(stripped(tmp_path / "optimized.onnx"), ours.example)
    fused = {
        str(found.owner): [str(call) for call in found.contributors]
        for found in usage.attributions.values()
        if found.kind == "fused"
    }
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        assert fused[f"{layer}.output.LayerNorm"] == [f"{layer}.output"]
        assert fused[f"{layer}.attention.output.LayerNorm"] == [f"{layer}.attention.output"]
    assert fused["pooler.activation"] == ["pooler.dense"]


@each("bert", "transformer_encoder", "albert")
def test_attention_is_seen_in_parts_as_exporters_write_it(tagged: Tagged, name: str) -> None:
    usage = tagged(name)[1]
    assert usage.matched >= 0.88 * usage.distinctive


@pytest.mark.xdist_group("cnn")
def test_folded_batchnorm_names_the_convolution_too(tagged: Tagged) -> None:
    found = [found for found in tagged("cnn")[1].attributions.values() if found.kind == "fused"]
    assert [(str(one.owner), [str(call) for call in one.contributors]) for one in found] == [
        ("features.0.norm", ["features.0.conv"]),
        ("features.2.norm", ["features.2.conv"]),
    ]


@pytest.mark.xdist_group("with_methods")
def test_node_that_serves_several_calls_names_all_of_them(tagged: Tagged) -> None:
    merged = [found for found in tagged("with_methods")[1].attributions.values() if found.kind == "merged"]
    assert {str(found.owner) for found in merged} == {"", "child.lin", "child.steps.0", "child.steps.1"}
    assert all(found.contributors for found in merged)


@pytest.mark.xdist_group("cond")
def test_nodes_of_the_branch_that_ran_are_found_by_the_weights_they_consume(exported: Exporter) -> None:
    graph = stripped(exported("cond").path)
    usage = by_usage(graph, exported("cond").example)
    recorded = {node.id: node.module for node in exported("cond").document.nodes}
    parents = {call.id: call.parent for call in exported("cond").document.calls}
    ran = {str(call.id) for call in usage.calls}
    told = 0
    for identity, node in nodes_with_ids(graph):
        if "/" not in identity:
            continue
        found = usage.attributions[node]
        assert found.kind == "inferred"
        # Its own call, or one around it that says which it may be.
        chain, call = [], recorded[identity]
        while call is not None:
            chain.append(call)
            call = parents[call]
        assert str(found.owner) in chain
        told += str(found.owner) == recorded[identity] != ""
        if recorded[identity] in ran:
            assert recorded[identity] in {str(found.owner), *map(str, found.contributors)}
    assert told >= 1


# --- the strategy ----------------------------------------------------------------------------------------------

_REGISTRY = StrategyRegistry((UsageBasedStrategy(),))


def export_by_usage(example: zoo.ExampleModel, path: Path) -> modelexport.ExportResult:
    fresh_generated_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return modelexport.export_model(example.model, example.inputs, path, strategy="usage_based", registry=_REGISTRY)


@each("shared_block")
def test_strategy_writes_the_file_that_plain_torch_writes(tmp_path: Path, name: str) -> None:
    example = zoo.build(name)
    result = export_by_usage(example, tmp_path / "ours.onnx")
    plain = export_plainly(example.model, (example.inputs,), {}, tmp_path / "plain.onnx")
    assert modelexport.strip_hierarchy(onnx.load(result.onnx_path)) == plain
    assert result.strategy == "usage_based"
    assert result.coverage == 1.0
    assert modelexport.load(result.onnx_path).document == result.document


def test_strategy_takes_the_torchscript_exporter_where_dynamo_fails(tmp_path: Path, monkeypatch: Any) -> None:
    original = torch.onnx.export

    def fail(*args: Any, dynamo: bool = True, **options: Any) -> Any:
        if dynamo:
            raise RuntimeError("not today")
        return original(*args, dynamo=dynamo, **options)

    monkeypatch.setattr(torch.onnx, "export", fail)
    result = export_by_usage(zoo.build("shared_block"), tmp_path / "model.onnx")
    assert result.document.exporter == "torchscript"
    assert [attempt.error is None for attempt in result.attempts] == [False, True]
    assert {"blk.lin", "blk.lin@1", "blk.lin@2", "out"} <= {node.module for node in result.document.nodes}


def test_missing_runtime_is_said_before_anything_is_exported(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: pytest.fail("exported"))
    with pytest.raises(modelexport.ModelExportError, match=r"pip install 'modelexport\[runtime\]'"):
        export_by_usage(zoo.build("shared_block"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
