"""Branches of `torch.cond` that call modules: the nodes of ONNX subgraphs lose the module path."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case
from tests.conformance.parts import SIZE, Block, Scale, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(SIZE, SIZE)
        self.yes = Block()
        self.no = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return torch.cond(x.sum() > 0, lambda y: self.yes(y) * 2, lambda y: self.no(y) - 1, (x,)) + 1


class Inside(nn.Module):
    """`cond` runs in a submodule, and the same module is called in both branches."""

    class Chooser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blk = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.mean() > 0, lambda y: self.blk(y) * 2, lambda y: torch.sin(self.blk(y * 3)), (x,))

    def __init__(self) -> None:
        super().__init__()
        self.chooser = self.Chooser()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.chooser(x) * 0.5


class Nested(nn.Module):
    """`cond` in a branch of another `cond`; one of the modules is called after it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.two = Block()
        self.three = nn.Linear(SIZE, SIZE)
        self.after = Scale(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return torch.cond(y.max() > 2, lambda z: self.one(z) * 2, lambda z: self.two(z + 1) * 3, (y,)) + 1

        return self.after(torch.cond(x.sum() > 0, inner, lambda y: self.three(y) - 1, (x,)))


_NO_COND = {"torchscript*": "TorchScript traces the branch that is taken, and refuses torch.cond itself"}

CASES = {
    "": Case(
        title="`cond` branches that call modules",
        build=lambda: (Net(), batch(), [batch() - 2, batch() + 2]),
        calls={"": ("stem", "yes", "no"), "yes": ("yes.lin",), "no": ("no.lin",)},
        refused=_NO_COND,
    ),
    "inside": Case(
        title="`cond` in a submodule, one module in both branches",
        build=lambda: (Inside(), batch().abs(), [-batch().abs()]),
        calls={
            "": ("chooser",),
            "chooser": ("chooser.blk", "chooser.blk@1"),
            "chooser.blk": ("chooser.blk.lin",),
            "chooser.blk@1": ("chooser.blk.lin@1",),
        },
        refused=_NO_COND,
        loops=True,
    ),
    "nested": Case(
        title="`cond` in a branch of `cond`",
        build=lambda: (Nested(), -batch().abs(), [batch().abs() + 2, batch().abs() * 0.1]),
        calls={"": ("one", "two", "three", "after"), "one": ("one.lin",), "two": ("two.lin",)},
        refused=_NO_COND,
    ),
}
