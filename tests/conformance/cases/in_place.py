"""In-place operators: one tensor has several values, one after the other."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        y.add_(x).mul_(0.5)
        y[:, 0] = x[:, 1]
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = InPlace()
        self.act = nn.ELU(inplace=True)
        self.two = InPlace()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.two(self.act(self.one(x)))
        x += 1
        return x


CASES = {
    "": Case(
        title="in-place operators",
        build=lambda: (Net(), batch()),
        calls={"": ("one", "act", "two"), "one": ("one.lin",), "two": ("two.lin",)},
        expects=(
            Expect("one.lin", ("one.lin",), owner="one.lin"),
            Expect("act", ("act",), owner="act"),
            Expect("two.lin", ("two.lin",), owner="two.lin"),
            Expect("", ("",), owner=""),
        ),
    )
}
