"""Files of transformers' exporter have inputs that it computed from the given ones: they are computed again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from benchmarks.sweep_checks import compare_with_pytorch, feeds_of
from tests.support.untouched import snapshot

import modelexport
from modelexport.errors import InputError
from modelexport.verification.contamination_by_value import validate_owners_by_value
from modelexport.verification.onnx_run import GraphInputs

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("graph_inputs")]

_GIVEN = ["hidden_states", "grid_thw"]
_COMPUTED = ["cu_seqlens", "position_ids"]


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, dict[str, torch.Tensor]]:
    """A part of a model that looks at images of any size, as transformers' exporter writes it."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    torch.manual_seed(0)
    config = Qwen2VLVisionConfig(depth=1, embed_dim=16, hidden_size=16, num_heads=2, patch_size=4, mlp_ratio=2)
    model = Qwen2VisionTransformerPretrainedModel(config).eval()
    inputs = {"hidden_states": torch.randn(16, 96), "grid_thw": torch.tensor([[1, 4, 4]])}
    path = tmp_path_factory.mktemp("vision") / "vision.onnx"
    result = modelexport.export_model(model, inputs, path, strategy="fx", exporter="transformers")
    assert result.document.exporter == "transformers"
    return path, model, inputs


def test_file_has_the_inputs_that_its_exporter_computed(vision: tuple[Path, Any, dict[str, torch.Tensor]]) -> None:
    path, _, _ = vision
    assert [value.name for value in onnx.load(path).graph.input] == [*_GIVEN, *_COMPUTED]


def test_modules_are_verified_on_the_inputs_that_the_model_was_given(
    vision: tuple[Path, Any, dict[str, torch.Tensor]],
) -> None:
    path, model, inputs = vision
    report = modelexport.verify_modules(path, model, inputs)
    assert report.passed, str(report)
    assert modelexport.verify_modules(path, model, tuple(inputs.values())).passed


def test_owners_are_judged_and_the_sweep_compares_on_them_too(
    vision: tuple[Path, Any, dict[str, torch.Tensor]],
) -> None:
    path, model, inputs = vision
    assert not validate_owners_by_value(path, model, inputs).findings
    feeds = feeds_of(path, modelexport.load(path).document, model, (), inputs)
    assert list(feeds) == [*_GIVEN, *_COMPUTED]
    assert compare_with_pytorch(path, feeds, model, (), inputs)["equal"]


def test_given_inputs_and_the_model_stay_as_they_were(vision: tuple[Path, Any, dict[str, torch.Tensor]]) -> None:
    path, model, inputs = vision
    before, own = snapshot(model), copy.copy(inputs)
    own["position_ids"] = torch.zeros(16, 2, dtype=torch.int64)
    found = GraphInputs(modelexport.load(path).document, model, (), own, [*_GIVEN, *_COMPUTED])
    assert found.tensors["position_ids"] is own["position_ids"]
    assert list(own) == [*_GIVEN, "position_ids"]
    assert snapshot(model) == before


def test_what_the_exporter_cannot_compute_is_named(
    vision: tuple[Path, Any, dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model, inputs = vision

    def fails(model: object, inputs: object) -> object:
        raise ValueError("no such thing")

    monkeypatch.setattr("modelexport.verification.onnx_run.prepared_inputs", fails)
    with pytest.raises(InputError, match=r"no tensor for 'cu_seqlens', 'position_ids'.*no such thing"):
        validate_owners_by_value(path, model, inputs)
    error = modelexport.verify_modules(path, model, inputs).whole_run_error
    assert "'cu_seqlens', 'position_ids'" in error
    assert "no such thing" in error


def test_files_of_other_exporters_are_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 2).eval()
    modelexport.export_model(model, torch.randn(1, 2), tmp_path / "linear.onnx")
    monkeypatch.setattr("modelexport.verification.onnx_run._prepared", None)
    found = GraphInputs(modelexport.load(tmp_path / "linear.onnx").document, model, (), {}, ["input"])
    assert found.missing == ["input"]
    assert found.explain() == ("no tensor for 'input': give the inputs that the file was exported with, by name")
