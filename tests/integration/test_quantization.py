"""onnxruntime's quantizer, told by `select` what to leave alone: exactly that stays in float."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.conftest import Exported, Exporter

from modelexport.cli.main import run

quantization = pytest.importorskip("onnxruntime.quantization")

pytestmark = [pytest.mark.xdist_group("bert"), pytest.mark.integration]

PATTERN = "class:BertEmbeddings or class:LayerNorm"


@pytest.fixture
def ours(exported: Exporter) -> Iterator[Exported]:
    # The quantizer advises to preprocess the model, which would rename nodes.
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield exported("bert")
    logging.disable(level)


def selected(ours: Exported, monkeypatch: pytest.MonkeyPatch, target: Path) -> dict[str, list[str]]:
    """What the command gives the quantizer."""
    arguments = ["select", str(ours.path), PATTERN, "--format", "ort-exclude", "-o", str(target)]
    monkeypatch.setattr(sys, "argv", ["modelexport", *arguments])
    with pytest.raises(SystemExit) as ended:
        run()
    assert not ended.value.code
    return json.loads(target.read_text(encoding="utf-8"))


def of_modules(ours: Exported) -> set[str]:
    """The names of the nodes of the embeddings and norms, found without selectors: by the paths of the model."""
    norms = {name for name, module in ours.example.model.named_modules() if type(module).__name__ == "LayerNorm"}
    paths = {call.id: call.path for call in ours.document.calls}
    wanted = {
        node.id
        for node in ours.document.nodes
        for call in (node.module, *node.contributors)
        if paths[call] in norms or paths[call].split(".")[0] == "embeddings"
    }
    return {node.name for node in onnx.load(ours.path).graph.node if node.output[0] in wanted}


def in_integers(model: onnx.ModelProto, original: onnx.ModelProto) -> set[str]:
    """The nodes that dynamic quantization changed: gone for an integer operation, or reading integer weights."""
    there = {node.name: node for node in model.graph.node}
    integers = {tensor.name for tensor in model.graph.initializer if tensor.data_type != onnx.TensorProto.FLOAT}
    weights = {tensor.name for tensor in original.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    return {
        node.name
        for node in original.graph.node
        if node.name not in there
        or any(a in weights and b in integers for a, b in zip(node.input, there[node.name].input, strict=True))
    }


def test_dynamic_quantization_leaves_exactly_the_selected_nodes_in_float(
    ours: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = selected(ours, monkeypatch, tmp_path / "keep.json")
    assert set(arguments["nodes_to_exclude"]) == of_modules(ours)
    original = onnx.load(ours.path)
    found = []
    for number, options in enumerate(({}, arguments)):
        target = tmp_path / f"{number}.onnx"
        quantization.quantize_dynamic(ours.path, target, **options)
        found.append(in_integers(onnx.load(target), original))
    everything, rest = found
    kept = everything & of_modules(ours)
    assert len(kept) == 3, "the three embedding tables are quantized unless they are excluded"
    assert rest == everything - kept
    assert rest


class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self._feeds = iter([feeds])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def between_integers(model: onnx.ModelProto) -> set[str]:
    """The nodes of which static quantization has quantized everything they read."""
    back = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    floats = {v.name for v in model.graph.value_info if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT} | back
    floats |= {tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT}
    read = {node.name: [name for name in node.input if name in floats] for node in model.graph.node if node.name}
    steps = {node.name for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    return {name for name, inputs in read.items() if name not in steps and inputs and back.issuperset(inputs)}


def test_static_quantization_leaves_exactly_the_selected_nodes_in_float(
    ours: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = selected(ours, monkeypatch, tmp_path / "keep.json")

    def quantized(name: str, **options: Any) -> set[str]:
        target = tmp_path / f"{name}.onnx"
        quantization.quantize_static(ours.path, target, Samples(ours.feeds), **options)
        return between_integers(onnx.load(target))

    everything, rest = quantized("all"), quantized("rest", **arguments)
    kept = everything & of_modules(ours)
    norms = {node.name for node in onnx.load(ours.path).graph.node if node.op_type == "LayerNormalization"}
    assert norms <= kept
    assert not rest & of_modules(ours)
    # Nodes that only move data are quantized where what they read is, never by themselves.
    followers = everything - kept - rest
    assert not any(quantized(f"alone{n}", nodes_to_quantize=[name]) & {name} for n, name in enumerate(followers))
    assert len(followers) <= 1
    assert rest == everything - kept - followers
