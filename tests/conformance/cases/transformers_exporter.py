"""A model that only transformers' own exporter takes: the record has to hold through that way as well."""

from __future__ import annotations

from typing import Any

import torch

from tests.conformance.case import Case, Expect, refused_below


def _build() -> tuple[Any, ...]:
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=29, d_model=8, d_kv=4, d_ff=10, num_layers=1, num_heads=2, use_cache=False)
    inputs = {"input_ids": torch.randint(1, 29, (2, 5)), "decoder_input_ids": torch.randint(1, 29, (2, 4))}
    return T5Model(config), inputs


_SIDES = ("encoder", "decoder")
_MADE = (
    "encoder.block.0.layer.0.SelfAttention.q",
    "encoder.block.0.layer.1.DenseReluDense.wo",
    "encoder.block.0.layer.1",
    "encoder.final_layer_norm",
    "decoder.block.0.layer.1.EncDecAttention.o",
    "decoder.block.0.layer.2",
)

CASES = {
    "": Case(
        title="T5 through transformers' exporter",
        build=_build,
        calls=None,
        expects=tuple(Expect(call, (call,), owner=call) for call in _MADE),
        # What is looked up for known positions is a constant.
        removed={"dynamo": tuple(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias" for side in _SIDES)},
        refused=refused_below((2, 11), "dynamo*", "transformers' exporter refuses it"),
        exporter="transformers",
        judged=20,
    )
}
