"""Weights in a file of their own: one file, named by its content, and otherwise torch's own graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.support import zoo

import modelexport
from modelexport.capture.torchscript import exporter_file

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("external")]


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_weights_lie_in_one_file_with_a_name_made_of_their_content(tmp_path: Path, strategy: str) -> None:
    example = zoo.build("cnn")
    path = tmp_path / "m.onnx"
    result = modelexport.export_model(
        example.model, example.inputs, path, strategy=strategy, external_data=True, overwrite=True
    )
    (data,) = tmp_path.glob("m-*.onnx.data")
    assert set(result.files) == {path, data, result.sidecar_path}
    first = data.name
    _check_runs(path, example)
    with torch.no_grad():
        example.model.head.weight.add_(1)
    modelexport.export_model(example.model, example.inputs, path, strategy=strategy, external_data=True, overwrite=True)
    (data,) = tmp_path.glob("m-*.onnx.data")
    assert data.name != first
    _check_runs(path, example)


def _check_runs(path: Path, example: zoo.ExampleModel) -> None:
    onnx.checker.check_model(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: example.inputs.numpy()})
    np.testing.assert_allclose(found, example.model(example.inputs).detach().numpy(), rtol=1e-3, atol=1e-5)
    assert modelexport.load(path).document is not None


def test_graph_is_torchs_own_but_for_where_the_data_lies(tmp_path: Path) -> None:
    example = zoo.build("cnn")
    modelexport.export_model(example.model, example.inputs, tmp_path / "ours.onnx", external_data=True)
    torch.onnx.export(example.model, (example.inputs,), str(tmp_path / "plain.onnx"), verbose=False)
    stripped = modelexport.strip_hierarchy(onnx.load(tmp_path / "ours.onnx", load_external_data=False))
    plain = onnx.load(tmp_path / "plain.onnx", load_external_data=False)
    assert plain.graph.initializer[0].external_data
    for tensor in (*stripped.graph.initializer, *plain.graph.initializer):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "data"
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)
    (ours,) = tmp_path.glob("ours-*.onnx.data")
    assert ours.read_bytes() == (tmp_path / "plain.onnx.data").read_bytes()


def test_torchscript_model_too_large_for_one_protobuf_is_one_graph_and_one_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_file, "_LARGEST_IN_MEMORY", 0)
    example = zoo.build("cnn")
    path = tmp_path / "m.onnx"
    result = modelexport.export_model(example.model, example.inputs, path, strategy="htp", external_data=True)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in result.files}
    assert len(result.files) == 3
    _check_runs(path, example)
