"""Configurations of small transformers models."""

from __future__ import annotations

from typing import Any


def gpt2_config(**changes: Any) -> Any:
    from transformers import GPT2Config

    return GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=4, **changes)


def t5_config(**changes: Any) -> Any:
    from transformers import T5Config

    return T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=1, num_heads=4, **changes)


def mixtral_config(**changes: Any) -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        **changes,
    )


def whisper_config(**changes: Any) -> Any:
    from transformers import WhisperConfig

    return WhisperConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **changes,
    )
