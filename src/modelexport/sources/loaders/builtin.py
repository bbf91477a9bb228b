"""The built-in model: a small BERT from its configuration, with a fixed seed and no download."""

from __future__ import annotations

from typing import Any

import torch

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.load_errors import explain_load_error, require

BUILTIN_PREFIX = "builtin:"
_SEED = 0


def build_builtin(reference: str) -> tuple[torch.nn.Module, Any]:
    """Build the built-in model of that name, with example inputs.

    Raises:
        ModelSourceError: There is no built-in model of that name, or transformers is not installed.
    """
    name = reference.removeprefix(BUILTIN_PREFIX)
    if name != "bert-tiny":
        raise ModelSourceError(f"there is no built-in model {name!r}: the only one is {BUILTIN_PREFIX}bert-tiny")
    require("transformers", "hf", reference)
    try:
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise explain_load_error(reference, None, error) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        config = BertConfig(
            vocab_size=1024,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=128,
        )
        model = BertModel(config).eval()
        tokens = torch.randint(0, config.vocab_size, (1, 16))
    return model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
