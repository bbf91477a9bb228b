"""Small transformers models that generate, with what their `generate` takes; and greedy generation in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from tests.support import zoo

_SIZES = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
}
_DECODER = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 1, "num_attention_heads": 4}


def _prompt() -> dict[str, torch.Tensor]:
    """Two prompts of equal length, as most examples are: nothing is masked."""
    tokens = torch.randint(3, 90, (2, 7))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def gpt2() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(config), _prompt()


def llama() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=99, num_key_value_heads=2, **_DECODER)), _prompt()


def qwen3() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(vocab_size=99, num_key_value_heads=2, head_dim=8, **_DECODER)), _prompt()


def t5() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config), _prompt()


def bart() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(max_position_embeddings=40, forced_eos_token_id=None, **_SIZES)
    return BartForConditionalGeneration(config), _prompt()


def whisper() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    tokens = {"decoder_start_token_id": 3, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    unsuppressed = {"suppress_tokens": None, "begin_suppress_tokens": None}
    config = WhisperConfig(
        max_source_positions=30, max_target_positions=40, num_mel_bins=8, **tokens, **unsuppressed, **_SIZES
    )
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 60)}


def llava() -> tuple[torch.nn.Module, dict[str, Any]]:
    """Text and image; what joins the two is left to the caller, so that it has no chain here."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=8, patch_size=4, **_DECODER | {"num_hidden_layers": 2}),
        text_config=LlamaConfig(vocab_size=99, num_key_value_heads=2, **_DECODER),
        image_token_index=98,
        image_seq_length=4,
    )
    inputs = _prompt()
    inputs["input_ids"][:, 1:5] = 98
    return LlavaForConditionalGeneration(config), {**inputs, "pixel_values": torch.randn(2, 3, 8, 8)}


_BUILDERS: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, Any]]]] = {
    builder.__name__: builder for builder in (gpt2, llama, qwen3, t5, bart, whisper, llava)
}


def build(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(zoo.SEED)
    model, inputs = _BUILDERS[name]()
    return model.eval(), inputs


def greedy_in_pytorch(model: Any, inputs: Mapping[str, Any], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The next `count` tokens by `generate` itself, which stops for nothing, and the scores it chose them by."""
    settings = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = {"output_logits": True, "return_dict_in_generate": True}
    model.generation_config.forced_eos_token_id = None
    made = model.generate(**inputs, **settings, **wanted)
    logits = torch.stack(list(made.logits), dim=1).numpy()
    return logits.argmax(-1), logits


def _as_input(output: str) -> str:
    """The name of an output as an input of the next stage."""
    return f"past_key_values{output.removeprefix('present')}" if output.startswith("present.") else output


class Stages:
    """Exported stages, run one after the other as `generate` would."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._sessions = {
            name: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for name, path in paths.items()
        }

    def run(self, name: str, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results of a stage by name; it takes what it needs from what is known."""
        session = self._sessions[name]
        feeds = {value.name: known[value.name] for value in session.get_inputs()}
        outputs = [value.name for value in session.get_outputs()]
        results = zip(outputs, session.run(outputs, feeds), strict=True)
        return {_as_input(output): np.asarray(array) for output, array in results}

    def greedy(self, inputs: Mapping[str, np.ndarray], start: int | None, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The next `count` tokens, and the scores they were chosen by.

        Args:
            inputs: What `generate` takes.
            start: The first token of a decoder that has an encoder.
            count: How many tokens.
        """
        known, own = dict(inputs), "input_ids"
        if "encoder" in self._sessions:
            encoded = self.run("encoder", known)
            own = "decoder_input_ids"
            rows = encoded["last_hidden_state"].shape[0]
            known |= {"encoder_outputs.last_hidden_state": encoded["last_hidden_state"]}
            known |= {own: np.full((rows, 1), start, dtype=np.int64)}
        else:
            mask = known.get("attention_mask", np.ones_like(known[own]))
            known["position_ids"] = np.maximum(mask.cumsum(-1) - 1, 0)
        chosen: list[np.ndarray] = []
        for step in range(count):
            known |= self.run("decode" if step else "prefill", known)
            chosen.append(known["logits"][:, -1])
            known[own] = chosen[-1].argmax(-1)[:, None]
            if own == "input_ids":
                known["position_ids"] = known["position_ids"][:, -1:] + 1
                if "attention_mask" in known:
                    known["attention_mask"] = np.pad(known["attention_mask"], ((0, 0), (0, 1)), constant_values=1)
        logits = np.stack(chosen, axis=1)
        return logits.argmax(-1), logits
