"""One module under several names: calls through any of them are calls of the one module."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = self.first
        self.inside = nn.ModuleDict({"third": self.first, "other": Block()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x) * 2)
        return self.inside["other"](self.inside["third"](x + 1))


_CALLS = ("first", "first@1", "first@2", "inside.other")

CASES = {
    "": Case(
        title="an aliased module",
        build=lambda: (Net(), batch()),
        calls={
            "": _CALLS,
            "first": ("first.lin",),
            "first@1": ("first.lin@1",),
            "first@2": ("first.lin@2",),
            "inside.other": ("inside.other.lin",),
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in _CALLS),
    )
}
