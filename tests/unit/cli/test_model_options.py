"""The options of commands that run a model: the same for all of them, and handed on to the source."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.command import Outcome

from modelexport.sources.loaders.sourced_model import LoadOptions

OPTIONS = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(LoadOptions)]
FACTORIES = "tests.support.factories"


@pytest.fixture
def bert_folder(tmp_path: Path) -> Path:
    """A base model without a head, in half precision."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).to(torch.float16).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.mark.parametrize("name", ["export", "inspect", "tag", "verify", "validate"])
def test_every_command_that_takes_a_model_takes_all_load_options(name: str, command: Callable[..., Outcome]) -> None:
    shown = command(name, "--help").stdout
    assert [option for option in OPTIONS if option not in shown] == []


def test_options_reach_the_source(command: Callable[..., Outcome], bert_folder: Path) -> None:
    def inspected(*options: str) -> Outcome:
        return command("inspect", bert_folder, "--format", "json", *options)

    plain = json.loads(inspected().stdout)["characteristics"]
    head = inspected("--task", "text-classification", "--dtype", "float32", "--attn-implementation", "eager")
    found = json.loads(head.stdout)["characteristics"]
    assert plain["model_type"] == "BertModel"
    assert found["model_type"] == "BertForSequenceClassification"
    note = "lacks 2 weights of BertForSequenceClassification, initialized at random: "
    assert head.stderr.startswith("note: "), "a head that nobody trained is said"
    assert note in head.stderr
    assert inspected("--task", "text-classification", "--random-weights").stderr == ""


@pytest.mark.parametrize("option", [("--random-weights",), ("--revision", "main"), ("--input-shape", "x=1")])
def test_option_about_a_model_without_a_model_is_refused(
    command: Callable[..., Outcome], tmp_path: Path, option: tuple[str, ...]
) -> None:
    outcome = command("validate", tmp_path / "model.onnx", *option)
    assert outcome.code == 2
    assert f"{option[0]} are for running a model: give --model too" in outcome.error


def test_option_that_the_model_has_no_use_for_is_one_line(command: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command("export", f"{FACTORIES}:net", tmp_path / "net.onnx", "--dtype", "float16")
    assert outcome.code == 2
    assert outcome.error == f"error: {FACTORIES}:net does not support --dtype: remove it"
    assert list(tmp_path.iterdir()) == []
