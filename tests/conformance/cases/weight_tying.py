"""One weight in two modules: the file contains it once, with one of the two names."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, SIZE)
        self.blk = Block()
        self.head = nn.Linear(SIZE, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blk(self.embed(tokens)))


class Twins(nn.Module):
    """Two layers with one weight, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(SIZE, SIZE)
        self.two = nn.Linear(SIZE, SIZE)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


CASES = {
    "": Case(
        title="tied weights of embedding and head",
        build=lambda: (Net(), torch.randint(0, 9, (2, 4))),
        calls={"": ("embed", "blk", "head"), "blk": ("blk.lin",)},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("embed", "blk", "head")),
    ),
    "layers": Case(
        title="tied weights of two layers",
        build=lambda: (Twins(), batch()),
        calls={"": ("one", "two")},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("one", "two")),
    ),
}
