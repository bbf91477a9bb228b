"""A module that is called several times: torch's metadata names the module, not the call."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()
        self.out = nn.Linear(SIZE, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.blk(x)
        return self.out(x)


# Files in which equal nodes were merged.
_MERGING = ("dynamo", "torchscript*")

CASES = {
    "": Case(
        title="a module called three times",
        build=lambda: (Net(), batch()),
        calls={
            "": ("blk", "blk@1", "blk@2", "out"),
            "blk": ("blk.lin",),
            "blk@1": ("blk.lin@1",),
            "blk@2": ("blk.lin@2",),
        },
        expects=tuple(Expect(call, (call,)) for call in ("blk", "blk@1", "blk@2", "blk.lin@1", "blk.lin@2", "out")),
    ),
    "same_input": Case(
        title="a module called twice with the same input: CSE merges the two calls",
        build=lambda: (Twice(), batch()),
        calls={"": ("blk", "blk@1"), "blk": ("blk.lin",), "blk@1": ("blk.lin@1",)},
        expects=(
            Expect("blk.lin", ("blk.lin", "blk.lin@1"), files=_MERGING, kinds=("merged",)),
            Expect("blk", ("blk", "blk@1"), files=_MERGING, kinds=("merged",)),
        ),
    ),
}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blk(x) * torch.sigmoid(self.blk(x))
