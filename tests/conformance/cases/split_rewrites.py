"""Slices that the optimizer replaces by one `Split` with new output names and without torch's metadata."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(SIZE, dim=-1)
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Sliced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(SIZE, 2 * SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.both(x)
        return torch.sigmoid(y[..., :SIZE]) * y[..., SIZE:]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Attention()
        self.two = Attention()
        self.gate = Sliced()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.two(self.one(x)), self.gate(x)], dim=-1)


def _first_slice(model: nn.Module, inputs: Any) -> torch.Tensor:
    return model.one.qkv(inputs[0])[..., :SIZE]


CASES = {
    "": Case(
        title="slices that become a `Split`",
        build=lambda: (Net(), batch(2, 4, SIZE)),
        calls={
            "": ("one", "two", "gate"),
            "one": ("one.qkv", "one.out"),
            "two": ("two.qkv", "two.out"),
            "gate": ("gate.both",),
        },
        expects=(
            *(Expect(call, (call,), owner=call) for call in ("one.qkv", "one.out", "two.qkv", "two.out", "gate.both")),
            Expect("gate", ("gate",), owner="gate"),
            Expect("", ("",), owner=""),
            # Wherever the first slice is made, be it as a slice or as the first result of a split.
            Expect(_first_slice, ("one",), owner="one"),
        ),
    )
}
