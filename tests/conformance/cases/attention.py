"""Attention, which eager PyTorch runs as one operator: the values of its inner nodes are computed nowhere else."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Sdpa(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(SIZE, SIZE)
        self.key = nn.Linear(SIZE, SIZE)
        self.value = nn.Linear(SIZE, SIZE)
        self.out = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.out(nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Sdpa()
        self.two = Sdpa()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x))


class Multihead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, 2, batch_first=True)
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(mixed + x)


_PARTS = ("query", "key", "value", "out")

CASES = {
    "sdpa": Case(
        title="the inner nodes of scaled_dot_product_attention",
        build=lambda: (Net(), batch(2, 5, SIZE)),
        calls={"": ("one", "two"), **{layer: tuple(f"{layer}.{part}" for part in _PARTS) for layer in ("one", "two")}},
        expects=tuple(Expect(f"{layer}.{part}", (f"{layer}.{part}",)) for layer in ("one", "two") for part in _PARTS),
    ),
    "multihead": Case(
        title="`MultiheadAttention`",
        # Its output projection is a module that is never called: its weights are used by the attention itself.
        build=lambda: (Multihead(), batch(2, 5, SIZE)),
        calls={"": ("attention", "norm")},
        expects=(Expect("attention", ("attention",)), Expect("norm", ("norm",))),
    ),
}
