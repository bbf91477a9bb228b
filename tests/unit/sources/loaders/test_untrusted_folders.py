"""Folders with a transformers model that cannot be loaded, or that would run code of their own."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support import tiny_models
from tests.support.command import Outcome
from tests.support.loading import class_name, load, refusal, rewritten

# --- what cannot be loaded -------------------------------------------------------------------------------------

pytest.importorskip("transformers")


def broken_folder(kind: str, bert: Path, folder: Path, marker: Path) -> Path:
    if kind == "no weights":
        return tiny_models.without_weights(bert, folder)
    if kind == "pickle":
        return tiny_models.with_pickle_only(bert, folder, marker)
    if kind == "own code":
        return tiny_models.with_own_code(folder, marker)
    if kind == "own class":
        tiny_models.with_own_code(folder, marker)
        return rewritten(folder, folder.with_name("own class, known type"), model_type="bert")
    if kind == "unknown type":
        return rewritten(bert, folder, model_type="from-the-future")
    if kind == "kernel":
        return rewritten(bert, folder, attn_implementation="stranger/kernel")
    shutil.copytree(bert, folder)
    if kind == "truncated":
        content = (bert / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    elif kind == "garbage":
        (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    elif kind == "empty weights":
        (folder / "model.safetensors").write_bytes(b"")
    elif kind == "configuration":
        (folder / "config.json").write_text("{", encoding="utf-8")
    elif kind == "no configuration":
        (folder / "config.json").unlink()
    elif kind == "adapter":
        (folder / "config.json").rename(folder / "adapter_config.json")
    elif kind == "pipeline":
        (folder / "config.json").rename(folder / "model_index.json")
    return folder


BROKEN = {
    "no weights": "has no weights: there is no model.safetensors",
    "pickle": "has pickled weights only (pytorch_model.bin)",
    "own code": "needs Python code from its repository (modeling_own.OwnConfig, modeling_own.OwnModel), which was not",
    "own class": "allow it with --trust-remote-code",
    "unknown type": "model_type 'from-the-future', which transformers",
    "kernel": "'stranger/kernel' is code from the hub, which was not downloaded",
    "truncated": "model.safetensors is not a complete safetensors file",
    "garbage": "model.safetensors is not a complete safetensors file",
    "empty weights": "model.safetensors is not a complete safetensors file",
    "configuration": "config.json",
    "no configuration": "has no config.json, so it is not a HuggingFace model",
    "adapter": "is an adapter without its model",
    "pipeline": "is a diffusers pipeline: name one of its models",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_folder_is_one_line_of_its_own_and_runs_nothing(
    kind: str, bert: Path, tmp_path: Path, marker: Path, command: Callable[..., Outcome]
) -> None:
    folder = broken_folder(kind, bert, tmp_path / "broken", marker)
    outcome = command("export", folder, tmp_path / "out.onnx")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert BROKEN[kind] in outcome.error
    assert str(folder) in outcome.error
    assert not marker.exists()
    assert not (tmp_path / "out.onnx").exists()


def test_code_that_is_allowed_runs(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers copies the code there, and imports it from there
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    folder = tiny_models.with_own_code(tmp_path / "own", marker)
    model = load(folder, trust_remote_code=True, random_weights=True).model
    assert type(model).__name__ == "OwnModel"
    assert marker.exists()
    assert model(torch.ones(1, 4)).shape == (1, 4)


def test_code_beside_a_model_that_needs_none_is_left_alone(bert: Path, tmp_path: Path, marker: Path) -> None:
    own = tiny_models.with_own_code(tmp_path / "own", marker)
    auto_map = json.loads((own / "config.json").read_bytes())["auto_map"]
    folder = rewritten(bert, tmp_path / "both", auto_map=auto_map)
    shutil.copy(own / "modeling_own.py", folder)
    assert class_name(folder) == "BertModel"
    assert not marker.exists()


def test_attention_from_the_hub_needs_permission(bert: Path) -> None:
    assert "code from the hub, which was not downloaded" in refusal(bert, attn_implementation="stranger/kernel")
    assert "quick" in refusal(bert, attn_implementation="quick")


@pytest.mark.parametrize(("package", "extra"), [("transformers", "hf"), ("timm", "timm"), ("diffusers", "diffusers")])
def test_missing_package_comes_with_the_command_that_installs_it(
    package: str, extra: str, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    reference = {"hf": str(bert), "timm": "timm:resnet18", "diffusers": f"diffusers:{bert}#unet"}[extra]
    message = refusal(reference)
    assert reference in message
    assert f"pip install 'modelexport[{extra}]'" in message
