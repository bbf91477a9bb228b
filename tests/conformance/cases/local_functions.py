"""Operators that the dynamo exporter writes as local functions unless it optimizes: their nodes have no metadata."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Softplus(), nn.GroupNorm(2, SIZE))
        self.two = nn.Sequential(nn.SiLU(), nn.Hardswish(), nn.InstanceNorm1d(3, affine=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.two(nn.functional.pad(x, (1, 2))[:, None, :].repeat(1, 3, 1))


_ONE = ("one.0", "one.1", "one.2")
_TWO = ("two.0", "two.1", "two.2")

CASES = {
    "": Case(
        title="operators exported as several nodes or as functions",
        build=lambda: (Net(), batch(4, SIZE)),
        calls={"": ("one", "two"), "one": _ONE, "two": _TWO},
        expects=tuple(Expect(call, (call,), owner=call) for call in (*_ONE, *_TWO)),
    )
}
