"""A reused module that calls a reused module: four calls of the inner one, two of the outer one."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x)) * 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = Outer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.outer(x)) - 1


_INNER = ["outer.inner", "outer.inner@1", "outer.inner@2", "outer.inner@3"]

CASES = {
    "": Case(
        title="a reused module inside a reused module",
        build=lambda: (Net(), batch()),
        calls={
            "": ("outer", "outer@1"),
            "outer": tuple(_INNER[:2]),
            "outer@1": tuple(_INNER[2:]),
            **{call: (call.replace("inner", "inner.lin"),) for call in _INNER},
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in (*_INNER, "outer", "outer@1")),
    )
}
