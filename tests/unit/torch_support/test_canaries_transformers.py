"""One test for each private API of transformers.

The test that fails names the API that a release changed: it has the name of the function of `torch_support` around it.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from torch import nn

from modelexport.torch_support import private, transformers_private

pytestmark = [
    pytest.mark.sanity,
    # Some of the modules of transformers that its exporters import call what torch says this of.
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated"),
]


def export(model: Any) -> torch.onnx.ONNXProgram:
    try:
        return transformers_private.export_to_onnx(model, dict(TOKENS), {"optimize": False})
    except ImportError as error:
        pytest.skip(f"transformers' exporter refuses this torch: {error}")


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    if not transformers_private.has_exporters():
        pytest.skip("this release of transformers has no exporters")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=16)
    return transformers.GPT2LMHeadModel(config).eval()


TOKENS = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}


def test_has_exporters(gpt2: Any) -> None:
    assert transformers_private.has_exporters()


def test_export_to_onnx(gpt2: Any) -> None:
    prepared: list[Any] = []

    def around(original: Any, model: Any, inputs: Any) -> None:
        prepared.append(set(inputs))
        original(model, inputs)

    with transformers_private.input_preparation_through(around):
        program = export(gpt2)
    assert isinstance(program, torch.onnx.ONNXProgram)
    assert program.exported_program is not None
    assert prepared
    assert "input_ids" in prepared[0]


test_input_preparation_through = test_export_to_onnx


def test_graph_names_through(gpt2: Any) -> None:
    def rename(name: str, is_output: bool) -> str:
        return f"{name}_{'out' if is_output else 'in'}"

    with transformers_private.graph_names_through(rename), contextlib.redirect_stdout(io.StringIO()):
        program = export(gpt2)
    graph = program.model.graph
    assert graph.inputs[0].name == "input_ids_in"
    assert graph.outputs[0].name == "logits_out"


def test_prepared_inputs(gpt2: Any) -> None:
    assert "input_ids" in transformers_private.prepared_inputs(gpt2, dict(TOKENS))


def test_register_caches(gpt2: Any) -> None:
    transformers_private.register_caches(gpt2)
    cache = gpt2(**TOKENS, use_cache=True).past_key_values
    assert len(private.tensors_among(cache)) == 2


def test_decompose_for_generation(gpt2: Any) -> None:
    parts = transformers_private.decompose_for_generation(gpt2, dict(TOKENS))
    assert len(parts) == 2
    assert all(isinstance(module, nn.Module) and "input_ids" in given for module, given in parts.values())


def test_implementations_of(gpt2: Any) -> None:
    gpt2.config._attn_implementation = "eager"
    assert "eager" in list(transformers_private.implementations_of(gpt2.config))


def test_model_from_config(gpt2: Any) -> None:
    made = transformers_private.model_from_config(type(gpt2), gpt2.config, {"attn_implementation": "eager"})
    assert type(made) is type(gpt2)


def test_models_by_config(gpt2: Any) -> None:
    import transformers

    assert type(gpt2.config) in transformers_private.models_by_config(transformers.AutoModelForCausalLM)
    assert transformers_private.models_by_config(type(gpt2)) is None
