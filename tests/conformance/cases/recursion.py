"""A module that calls itself, directly and through a child that references it."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        x = torch.tanh(self.lin(x)) * 1.5
        return self(x, depth - 1) + x if depth else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.tree(x))


CASES = {
    "": Case(
        title="a module that calls itself",
        build=lambda: (Net(), batch()),
        calls={
            "": ("tree",),
            "tree": ("tree.lin", "tree@1"),
            "tree@1": ("tree.lin@1", "tree@2"),
            "tree@2": ("tree.lin@2",),
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in ("tree", "tree@1", "tree@2", "tree.lin@1")),
    )
}
