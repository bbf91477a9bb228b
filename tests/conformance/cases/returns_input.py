"""A module that returns its input: it computes nothing, and owns no node of its neighbors."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Maybe(nn.Module):
    def __init__(self, *, does: bool) -> None:
        super().__init__()
        self.does = does
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.cos(x) if self.does else x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = Block()
        self.drop = nn.Dropout(0.5)
        self.nothing = Maybe(does=False)
        self.something = Maybe(does=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.something(self.nothing(self.drop(self.before(x)))) * 2


CASES = {
    "": Case(
        title="a module that returns its input",
        build=lambda: (Net(), batch()),
        calls={
            "": ("before", "drop", "nothing", "something"),
            "before": ("before.lin",),
            "nothing": ("nothing.inner",),
            "something": ("something.inner",),
        },
        expects=(
            Expect("before", ("before",), owner="before"),
            Expect("something", ("something",), owner="something"),
        ),
    )
}
