"""The models of the proof of batches: small ones of transformers, of timm and of torch, and those that fail."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import nn

_TYPES = (
    *("bert", "albert", "roberta", "distilbert", "electra", "gpt2", "opt", "gpt_neox", "llama", "mistral"),
    *("qwen2", "gemma", "phi", "bloom", "mpnet", "xlm-roberta", "camembert", "ernie", "layoutlm", "convbert"),
)
_FAMILIES = ("resnet10t", "test_convnext", "test_efficientnet", "test_resnet", "test_vit", "test_byobnet")
_SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "dim", "d_model", "word_embed_proj_dim", "embedding_size"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"), 2),
    **dict.fromkeys(("vocab_size",), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 32),
    "head_dim": 8,
}


def jobs(count: int, file: str) -> list[dict[str, Any]]:
    """So many jobs: nine of a hundred fail, the others are of the three sources in turn.

    Args:
        count: How many; at least 12.
        file: The path of this module.
    """
    failing: list[dict[str, Any]] = [
        *({"model": f"{file}:{name}", "name": name} for name in ("fails", "no_model", "missing", "wrong_inputs")),
        {"model": f"{file}:unexportable", "name": "unexportable"},
        {"model": f"{file}:crash('SIGSEGV')", "name": "segfault"},
        {"model": f"{file}:crash('SIGABRT')", "name": "abort"},
        {"model": f"{file}:forever", "name": "forever", "timeout": 20},
        {"model": f"{file}:eat_memory", "name": "eater", "memory": 3},
    ]
    good: list[dict[str, Any]] = []
    for number in range(count - len(failing)):
        kind = ("own", "own", "transformer", "timm")[number % 4]
        choices = {"own": 100, "transformer": len(_TYPES), "timm": len(_FAMILIES)}[kind]
        which, size = number // 4 % choices, number // 4 // choices + number % 2
        good.append({"model": f"{file}:{kind}({which}, {size})", "name": f"{kind}-{which}-{size}"})
    # Spread among the others, so that they run beside them.
    step = max(1, len(good) // len(failing))
    for position, job in enumerate(failing):
        good.insert(position * (step + 1), job)
    return good


EXPECTED = {
    **dict.fromkeys(("fails", "no_model", "missing", "wrong_inputs"), "bad_input"),
    "unexportable": "not_exportable",
    "segfault": "crashed",
    "abort": "crashed",
    "forever": "timed_out",
    "eater": "out_of_memory",
}


class _Block(nn.Module):
    def __init__(self, kind: int, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.inner = (nn.Linear, nn.GRU, nn.LSTM, nn.Linear)[kind](size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(self.norm(x))
        return x + torch.relu(found[0] if isinstance(found, tuple) else found)


def own(which: int, size: int) -> Any:
    """A few blocks of torch's own layers."""
    width = 8 * (1 + size)
    layers = [_Block(which % 4, width) for _ in range(1 + which // 4 % 5)]
    return nn.Sequential(*layers), (torch.ones(2, 3, width),)


def transformer(which: int, size: int) -> Any:
    """The base model of a type of transformers, small."""
    from transformers import AutoConfig, AutoModel

    kind = _TYPES[which]
    known = AutoConfig.for_model(kind)
    names = {**known.to_dict(), **dict.fromkeys(type(known).attribute_map)}
    sizes = {name: value * (1 + size if value == 16 else 1) for name, value in _SIZES.items() if name in names}
    config = AutoConfig.for_model(kind, **sizes, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return AutoModel.from_config(config).eval(), {"input_ids": torch.arange(2, 10).reshape(1, 8)}


def timm(which: int, size: int) -> Any:
    """A small model of timm, which is installed apart."""
    from benchmarks.sweep_candidates import _timm

    image = torch.ones(1, 3, 96 + 32 * size, 96 + 32 * size)
    name = _FAMILIES[which]
    options = {"img_size": image.shape[-1]} if "vit" in name else {}
    return _timm().create_model(name, pretrained=False, **options).eval(), (image,)


class _Unexportable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(x).real if x.sum().item() > 0 else torch.from_numpy(x.numpy() * 2)


def unexportable() -> Any:
    """No exporter has an operator for it."""
    return _Unexportable(), (torch.eye(3),)


def wrong_inputs() -> Any:
    """Inputs that do not fit."""
    return nn.Linear(3, 3), (torch.ones(2, 4),)


def no_model() -> Any:
    """Not a model."""
    return 42


def fails() -> Any:
    """A factory that fails."""
    raise RuntimeError("not today")


def crash(name: str) -> Any:
    """The end of the interpreter."""
    os.kill(os.getpid(), getattr(signal, name))


def forever() -> Any:
    """Never ends."""
    while True:
        time.sleep(1)


def eat_memory() -> Any:
    """Takes all memory."""
    kept = []
    while True:
        kept.append(torch.zeros(2**24))
