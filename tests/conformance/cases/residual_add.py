"""Residual connections: the Add belongs to the module that ran it, whichever modules computed its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SIZE)
        self.mlp = nn.Sequential(nn.Linear(SIZE, 8), nn.ReLU(), nn.Linear(8, SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.layers(x))


def _sum(model: nn.Module, inputs: Any) -> torch.Tensor:
    return inputs[0] + model.layers(inputs[0])


_LAYERS = ("layers.0", "layers.1")

CASES = {
    "": Case(
        title="residual additions",
        build=lambda: (Net(), batch()),
        calls={
            "": ("layers", "norm"),
            "layers": _LAYERS,
            **{layer: (f"{layer}.norm", f"{layer}.mlp") for layer in _LAYERS},
            **{f"{layer}.mlp": tuple(f"{layer}.mlp.{n}" for n in range(3)) for layer in _LAYERS},
        },
        expects=(
            *(Expect(call, (call,), owner=call) for call in (*_LAYERS, "norm", "layers.0.norm", "layers.1.mlp.2")),
            Expect(_sum, ("",), owner=""),
        ),
    )
}
