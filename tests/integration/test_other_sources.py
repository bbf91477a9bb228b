"""Models of timm and diffusers by reference: loaded, exported, compared with PyTorch, and each way it fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from tests.support import tiny_models
from tests.support.command import Outcome
from tests.support.commands_in_process import APART, run_commands

from modelexport.errors import InputError, ModelSourceError
from modelexport.sources.loaders.model_reference import load_model
from modelexport.sources.loaders.sourced_model import LoadOptions, SourcedModel

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("other_sources")]


def refusal(reference: str, **options: Any) -> str:
    with pytest.raises(ModelSourceError) as raised:
        load_model(reference, LoadOptions(**options))
    return str(raised.value)


# --- timm ------------------------------------------------------------------------------------------------------

_TYPES = {"tensor(float)": torch.float32, "tensor(int64)": torch.int64}
TIMM_MODELS = ("test_vit", "test_resnet", "test_convnext")


@pytest.fixture(scope="module")
def timm_outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Outcome]]:
    """In a process of its own, where torchvision may be imported."""
    if not (APART / "timm").is_dir():
        pytest.fail(f"timm is not in {APART}: make puts it there")
    folder = tmp_path_factory.mktemp("timm")
    home = folder / "home"
    Image.new("RGB", (200, 100), "red").save(folder / "red.png")
    asked: dict[str, list[str | Path]] = {
        name: ["export", f"timm:{name}", folder / f"{name}.onnx", "--random-weights", "--strategy", "htp"]
        for name in TIMM_MODELS
    }
    asked["test_resnet"] += ["--input-image", folder / "red.png"]
    asked["verify"] = ["verify", folder / "test_convnext.onnx", "--model", "timm:test_convnext", "--random-weights"]
    asked["offline"] = ["inspect", "timm:test_vit"]
    asked["unknown"] = ["inspect", "timm:resnet18x"]
    asked["unknown tag"] = ["inspect", "timm:resnet18.nothing"]
    asked["option"] = ["inspect", "timm:test_vit", "--task", "image-classification"]
    asked["save"] = ["inspect", f"tests.support.factories:cached_by_timm('test_resnet', {str(home)!r})"]
    asked["cached"] = ["inspect", "timm:test_resnet"]
    asked["corrupt"] = ["inspect", "timm:test_convnext"]
    (folder / "corrupt").mkdir()
    (folder / "corrupt" / "model.safetensors").write_bytes(b"\xff" * 64)
    tiny_models.put_in_cache(folder / "corrupt", home, "timm/test_convnext.r160_in1k")
    outcomes = run_commands(list(asked.values()), torchvision=True, HF_HOME=str(home), HF_HUB_OFFLINE="1")
    return folder, dict(zip(asked, outcomes, strict=True))


@pytest.mark.parametrize("name", TIMM_MODELS)
def test_timm_model_exports_with_the_image_size_it_was_made_for(
    timm_outcomes: tuple[Path, dict[str, Outcome]], name: str
) -> None:
    folder, outcomes = timm_outcomes
    assert outcomes[name].code == 0, outcomes[name].stderr
    assert "100% with an owner" in outcomes[name].stdout
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    (value,) = session.get_inputs()
    assert value.shape == [1, 3, 160, 160]


def test_timm_model_verifies_with_the_same_random_weights(timm_outcomes: tuple[Path, dict[str, Outcome]]) -> None:
    _, outcomes = timm_outcomes
    assert outcomes["verify"].code == 0, outcomes["verify"].stdout


def test_timm_model_in_the_cache_is_used_offline(timm_outcomes: tuple[Path, dict[str, Outcome]]) -> None:
    _, outcomes = timm_outcomes
    assert outcomes["save"].code == 0, outcomes["save"].stderr
    assert outcomes["cached"].code == 0, outcomes["cached"].stderr
    # Below the first line, which is the reference.
    cached, save = (outcomes[name].stdout.partition("\n")[2] for name in ("cached", "save"))
    assert cached == save


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("offline", "timm:test_vit is not in the cache"),
        ("unknown", "has no model 'resnet18x': did you mean resnet18"),
        ("unknown tag", "Invalid pretrained tag (nothing)"),
        ("option", "does not support --task"),
        ("corrupt", "timm:test_convnext: model.safetensors is not a complete safetensors file"),
    ],
)
def test_timm_model_that_cannot_be_loaded_is_one_line(
    timm_outcomes: tuple[Path, dict[str, Outcome]], kind: str, said: str
) -> None:
    outcome = timm_outcomes[1][kind]
    assert outcome.code == 2
    assert said in outcome.error
    assert outcome.stderr.count("\n") == 1


# --- diffusers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("diffusers")
    return tiny_models.save_pipeline(tmp_path_factory.mktemp("diffusers") / "pipeline")


def load(reference: str, **options: Any) -> SourcedModel:
    return load_model(reference, LoadOptions(**options))


def test_model_of_a_pipeline_exports_and_gives_the_results_of_pytorch(
    pipeline: Path, tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    reference = f"diffusers:{pipeline}#unet"
    outcome = command("export", reference, tmp_path / "unet.onnx", "--format", "json")
    assert outcome.code == 0, outcome.stderr
    assert json.loads(outcome.stdout)["summary"]["coverage"] == 1.0
    model = load(reference).model
    session = onnxruntime.InferenceSession(tmp_path / "unet.onnx", providers=["CPUExecutionProvider"])
    inputs = {value.name: torch.ones(value.shape, dtype=_TYPES[value.type]) for value in session.get_inputs()}
    inputs["sample"] = torch.randn_like(inputs["sample"])
    (result,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        expected = model(**inputs).sample.numpy()
    np.testing.assert_allclose(result, expected, atol=1e-4)


def test_model_that_was_saved_alone_is_the_same(pipeline: Path) -> None:
    alone, inside = load(f"diffusers:{pipeline}/unet").model, load(f"diffusers:{pipeline}#unet").model
    assert all(torch.equal(alone.state_dict()[name], weight) for name, weight in inside.state_dict().items())


def test_model_of_transformers_in_a_pipeline_is_loaded_as_one(pipeline: Path) -> None:
    sourced = load(f"diffusers:{pipeline}#text_encoder", task="fill-mask", random_weights=True)
    assert type(sourced.model).__name__ == "BertForMaskedLM"


def test_weights_of_a_component_are_its_own_or_random_and_have_the_requested_type(pipeline: Path) -> None:
    reference = f"diffusers:{pipeline}#unet"
    stored, again = (load(reference).model.state_dict() for _ in range(2))
    made, made_again = (load(reference, random_weights=True).model.state_dict() for _ in range(2))
    assert all(torch.equal(stored[name], again[name]) for name in stored)
    assert all(torch.equal(made[name], made_again[name]) for name in made)
    assert not torch.equal(stored["conv_in.weight"], made["conv_in.weight"])
    for options in ({}, {"random_weights": True}):
        half = load(reference, dtype="float16", **options).model
        assert {weight.dtype for weight in half.parameters()} == {torch.float16}
        assert not half.training


def test_component_that_is_not_a_model_is_refused_with_those_that_are(pipeline: Path) -> None:
    models = f"its models are diffusers:{pipeline}#text_encoder, diffusers:{pipeline}#unet"
    assert models in refusal(f"diffusers:{pipeline}#scheduler")
    assert models in refusal(f"diffusers:{pipeline}")
    assert "is not the name of a model" in refusal(f"diffusers:{pipeline}#../pipeline/unet")
    assert "is a diffusers pipeline" in refusal(str(pipeline))


def test_option_that_a_diffusers_model_has_no_use_for_is_refused(pipeline: Path) -> None:
    for options in ({"task": "fill-mask"}, {"revision": "main"}, {"attn_implementation": "eager"}):
        with pytest.raises(InputError, match="does not support --"):
            load(f"diffusers:{pipeline}#unet", **options)


def test_folder_that_is_not_there_is_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    message = refusal("diffusers:someone/pipeline#unet")
    assert "diffusers:someone/pipeline#unet is not in the cache" in message
    assert "no folder has this name either" in message
    assert "is not a model id" in refusal(f"diffusers:{tmp_path}/nothing/here#unet")


def test_cached_component_is_used_offline(pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tiny_models.put_in_cache(pipeline / "unet", tmp_path, "someone/pipeline")
    (snapshot / "unet").mkdir()
    for file in list(snapshot.glob("*.*")):
        file.replace(snapshot / "unet" / file.name)
        (snapshot / "unet" / file.name).unlink()
        shutil.copy(pipeline / "unet" / file.name, snapshot / "unet")
    assert type(load("diffusers:someone/pipeline#unet").model).__name__ == "UNet2DModel"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("pickle", "has pickled weights only (diffusion_pytorch_model.bin)"),
        ("none", "has no weights: there is no diffusion_pytorch_model.safetensors"),
        ("corrupt", "diffusion_pytorch_model.safetensors is not a complete safetensors file"),
        ("class", "names class 'Trainer', which is not a model class of diffusers"),
        ("configuration", "cannot be read"),
        ("list", "is not a configuration"),
    ],
)
def test_broken_component_is_one_line_and_runs_nothing(
    pipeline: Path, tmp_path: Path, kind: str, said: str, command: Callable[..., Outcome]
) -> None:
    folder, marker = tmp_path / "unet", tmp_path / "marker"
    shutil.copytree(pipeline / "unet", folder)
    weights = folder / "diffusion_pytorch_model.safetensors"
    if kind == "pickle":
        weights.rename(folder / "diffusion_pytorch_model.bin")
        (folder / "diffusion_pytorch_model.bin").write_bytes(tiny_models.pickled_trap(marker))
    elif kind == "none":
        weights.unlink()
    elif kind == "corrupt":
        weights.write_bytes(weights.read_bytes()[:1000])
    else:
        written = {"class": '{"_class_name": "Trainer"}', "configuration": "{", "list": "[]"}[kind]
        (folder / "config.json").write_text(written, encoding="utf-8")
    outcome = command("inspect", f"diffusers:{folder}")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert said in outcome.error
    assert not marker.exists()
