"""Whatever torch.onnx.export takes reaches it: the file is torch's own for the same options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.plain import export_plainly

import modelexport

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("bert")]


class MaskedMean(torch.nn.Module):
    """Two inputs and two outputs, in the layers of a small encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(99, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.pooler = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.norm(self.embedding(input_ids))
        weights = torch.softmax(attention_mask.float(), dim=1)
        return states, self.pooler((states * weights[..., None]).sum(dim=1))


_OPTIONS: dict[str, dict[str, Any]] = {
    "names": {"input_names": ["tokens", "mask"], "output_names": ["states", "pooled"]},
    "opset": {"opset_version": 20},
    "older opset": {"opset_version": 17},
    "named axes": {
        "dynamic_shapes": {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
    },
    "names and axes": {
        "input_names": ["tokens", "mask"],
        "output_names": ["states", "pooled"],
        "dynamic_shapes": {"input_ids": {0: "batch"}, "attention_mask": {0: "batch"}},
    },
    "no weights": {"export_params": False},
    "weights as inputs": {"keep_initializers_as_inputs": True},
}


@pytest.mark.parametrize("options", [pytest.param(value, id=name) for name, value in _OPTIONS.items()])
def test_options_give_the_file_that_torch_writes_with_them(tmp_path: Path, options: dict[str, Any]) -> None:
    model = MaskedMean().eval()
    tokens = torch.randint(99, (2, 7))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    result = modelexport.export_model(
        model, inputs, tmp_path / "ours.onnx", strategy="fx", external_data=False, **options
    )
    plain = export_plainly(model, (), inputs, tmp_path / "plain.onnx", **options)
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)
    assert result.coverage == 1.0
    root = result.document.calls[0]
    assert [tensor.tensor for tensor in root.inputs] == [value.name for value in plain.graph.input][:2]
    assert [tensor.tensor for tensor in root.outputs] == [value.name for value in plain.graph.output]


def test_custom_translations_reach_the_exporter(tmp_path: Path) -> None:
    from onnxscript import opset18

    def relu_as_max(x: Any) -> Any:
        return opset18.Max(x, opset18.CastLike(0.0, x))

    result = modelexport.export_model(
        torch.nn.ReLU(),
        torch.randn(2, 3),
        tmp_path / "m.onnx",
        custom_translation_table={torch.ops.aten.relu.default: relu_as_max},
    )
    assert "Max" in {node.op for node in result.document.nodes}


def test_inference_for_nodes_without_evidence_can_be_disabled(exported: Exporter, tmp_path: Path) -> None:
    example = zoo.build("bert")
    with_reasoning = exported("bert", dynamic=True).document
    without = modelexport.export_model(
        example.model,
        example.inputs,
        tmp_path / "bert.onnx",
        strategy="fx",
        dynamic_shapes=example.dynamic_shapes,
        advanced_resolution=False,
    ).document
    reasoned = {node.id: node for node in with_reasoning.nodes if node.kind == "inferred"}
    assert reasoned
    assert any(node.contributors for node in reasoned.values())
    assert any(node.context for node in with_reasoning.nodes)
    for node in without.nodes:
        assert node.context == ()
        if node.kind == "inferred":
            assert (node.module, node.contributors, node.confidence) == ("", (), 0.1)
        else:
            assert node.id not in reasoned


def test_boundaries_keep_reasoning_out_of_the_modules_they_name(tmp_path: Path) -> None:
    example = zoo.build("bert")
    document = modelexport.export_model(
        example.model,
        example.inputs,
        tmp_path / "bert.onnx",
        strategy="fx",
        dynamic_shapes=example.dynamic_shapes,
        boundaries=["class:BertEncoder"],
    ).document
    inferred = [node for node in document.nodes if node.kind == "inferred"]
    assert inferred
    for node in inferred:
        assert not any(call.startswith("encoder") for call in node.contributors)


def test_unknown_boundary_module_is_refused_before_anything_is_traced(tmp_path: Path) -> None:
    example = zoo.build("bert")
    steps: list[str] = []
    with pytest.raises(modelexport.InputError, match="decoder"):
        modelexport.export_model(
            example.model,
            example.inputs,
            tmp_path / "bert.onnx",
            boundaries=["decoder"],
            progress=lambda event: steps.append(event.step),
        )
    assert steps == ["check"]
