"""A module without weights: only the trace shows that it was called."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Scale, batch


class Mix(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(y) + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)
        self.mix = Mix()
        self.act = nn.GELU()
        self.scale = Scale(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(self.act(self.mix(self.lin(x), x)))


CASES = {
    "": Case(
        title="modules without parameters",
        build=lambda: (Net(), batch()),
        calls={"": ("lin", "mix", "act", "scale")},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("lin", "mix", "act", "scale")),
    )
}
