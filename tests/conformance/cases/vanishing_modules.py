"""Modules whose nodes are all folded by the optimizer: no other node may name them."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect, refused_below
from tests.conformance.parts import SIZE, Block, Scale, batch


class TimesOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1 + 0


class BackAndForth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).transpose(0, 1)


class Table(nn.Module):
    """Computes a constant: it needs no input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE))

    def forward(self) -> torch.Tensor:
        return torch.sin(self.weight * 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()
        self.times_one = TimesOne()
        self.back = BackAndForth()
        self.table = Table()
        self.after = Scale(0.6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.back(self.times_one(self.blk(x)))) + self.table()


CASES = {
    "": Case(
        title="modules whose nodes are all removed",
        build=lambda: (Net(), batch()),
        calls={"": ("blk", "times_one", "back", "after", "table"), "blk": ("blk.lin",)},
        expects=(
            Expect("blk", ("blk",), owner="blk"),
            Expect("after", ("after",), owner="after"),
            Expect("", ("",), owner=""),
        ),
        removed={"dynamo": ("times_one", "back", "table"), "torchscript*": ("times_one", "back")},
        refused=refused_below((2, 13), "dynamo*", "a parameter times a number is not decomposed"),
    )
}
