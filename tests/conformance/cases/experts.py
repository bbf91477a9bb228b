"""Modules chosen and combined by computed weights, kept in a `ModuleDict`."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(SIZE, 3)
        self.experts = nn.ModuleDict({name: Block() for name in ("first", "second", "third")})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        results = torch.stack([expert(x) for expert in self.experts.values()], dim=-1)
        return (results * weights[:, None, :]).sum(-1)


_EXPERTS = ("experts.first", "experts.second", "experts.third")

CASES = {
    "": Case(
        title="experts in a `ModuleDict`, all with the same input",
        build=lambda: (Net(), batch()),
        calls={"": ("router", *_EXPERTS), **{call: (f"{call}.lin",) for call in _EXPERTS}},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("router", *_EXPERTS, "")),
    )
}
