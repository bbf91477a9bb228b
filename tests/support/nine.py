"""Nine transformers models, small, with the defaults their configurations come with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support import zoo
from tests.support.small_configs import gpt2_config, mixtral_config, t5_config, whisper_config


def _tokens() -> torch.Tensor:
    return torch.randint(3, 99, (1, 7))


def gpt2() -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Model

    config = gpt2_config()
    return GPT2Model(config), {"input_ids": _tokens()}


def llama() -> tuple[Any, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaModel(config), {"input_ids": _tokens()}


def t5() -> tuple[Any, dict[str, Any]]:
    from transformers import T5Model

    config = t5_config()
    return T5Model(config), {"input_ids": _tokens(), "decoder_input_ids": _tokens()}


def mixtral() -> tuple[Any, dict[str, Any]]:
    from transformers import MixtralModel

    config = mixtral_config()
    return MixtralModel(config), {"input_ids": _tokens()}


def swin() -> tuple[Any, dict[str, Any]]:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4)
    return SwinModel(config), {"pixel_values": torch.randn(1, 3, 32, 32)}


def mamba() -> tuple[Any, dict[str, Any]]:
    from transformers import MambaConfig, MambaModel

    return MambaModel(MambaConfig(vocab_size=99, hidden_size=32, state_size=8, num_hidden_layers=2)), {
        "input_ids": _tokens()
    }


def bart() -> tuple[Any, dict[str, Any]]:
    from transformers import BartConfig, BartModel

    config = BartConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        max_position_embeddings=64,
    )
    return BartModel(config), {"input_ids": _tokens(), "decoder_input_ids": _tokens()}


def whisper() -> tuple[Any, dict[str, Any]]:
    from transformers import WhisperModel

    config = whisper_config()
    return WhisperModel(config), {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": _tokens()[:, :5]}


def clip() -> tuple[Any, dict[str, Any]]:
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={"vocab_size": 99, "eos_token_id": 98, **small},
        vision_config={"image_size": 30, "patch_size": 10, **small},
    )
    return CLIPModel(config), {"input_ids": _tokens(), "pixel_values": torch.randn(1, 3, 30, 30)}


_BUILDERS: tuple[Callable[[], tuple[Any, dict[str, Any]]], ...] = (
    gpt2,
    llama,
    t5,
    swin,
    mixtral,
    mamba,
    bart,
    whisper,
    clip,
)
NAMES = [builder.__name__ for builder in _BUILDERS]


def build(name: str) -> zoo.ExampleModel:
    torch.manual_seed(zoo.SEED)
    model, inputs = next(builder for builder in _BUILDERS if builder.__name__ == name)()
    return zoo.ExampleModel(name, model.eval(), inputs)
