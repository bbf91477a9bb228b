"""Modules called with tensors as keyword arguments, in another order than that of `forward`."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.lin(x) + shift
        return y if scale is None else torch.tanh(y * scale)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Mixed()
        self.two = Mixed()

    def forward(self, x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.two(scale=scale * 2, shift=shift, x=self.one(x, shift=shift)) * scale


CASES = {
    "": Case(
        title="a module called with keyword tensors",
        build=lambda: (Net(), {"x": batch(), "shift": batch(), "scale": batch()}),
        calls={"": ("one", "two"), "one": ("one.lin",), "two": ("two.lin",)},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("one", "two", "one.lin", "two.lin", "")),
    )
}
