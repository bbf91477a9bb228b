"""A module whose output is not used: exporters remove its nodes, and no other node may name it."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, batch


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(SIZE, SIZE)
        self.unused = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.used(x)), torch.sin(self.unused(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()
        self.ignored = Block()
        self.two = Two()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ignored(x)
        first, _ = self.two(self.blk(x))
        return first


CASES = {
    "": Case(
        title="a module whose output is not used",
        build=lambda: (Net(), batch()),
        calls={
            "": ("ignored", "blk", "two"),
            "ignored": ("ignored.lin",),
            "blk": ("blk.lin",),
            "two": ("two.used", "two.unused"),
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in ("blk", "two", "two.used")),
        removed={"*": ("ignored", "ignored.lin", "two.unused")},
    )
}
