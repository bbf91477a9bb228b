"""Buffers that `forward` updates: their new values are computed in the graph."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, batch


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(SIZE))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)
        self.mean.mul_(0.9).add_(x.mean(0) * 0.1)
        return x - self.mean + self.steps


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()
        self.counter = Counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.counter(self.blk(x)) * 2


CASES = {
    "": Case(
        title="buffers updated in forward",
        build=lambda: (Net(), batch()),
        calls={"": ("blk", "counter"), "blk": ("blk.lin",)},
        expects=(Expect("blk", ("blk",), owner="blk"),),
        unsupported={
            ("htp:*", "boundaries"): "tracing runs the model: the file starts with buffers that were updated once"
        },
    )
}
