"""Each layer computes the same attention mask: the optimizer keeps one node for all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(SIZE, SIZE)
        self.key = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        added = (1 - mask[:, None, :]) * -5.0
        scores = self.query(x) @ self.key(x).transpose(1, 2) + added
        return scores.softmax(-1) @ x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


def _mask(model: nn.Module, inputs: Any) -> torch.Tensor:
    return (1 - inputs[1][:, None, :]) * -5.0


_LAYERS = ("layers.0", "layers.1", "layers.2")

CASES = {
    "": Case(
        title="the attention mask shared by layers",
        # Its values are no zeros and ones, so that the value check can judge it.
        build=lambda: (Net(), (batch(2, 4, SIZE), torch.rand(2, 4))),
        calls={"": _LAYERS, **{layer: (f"{layer}.query", f"{layer}.key") for layer in _LAYERS}},
        expects=(
            Expect(_mask, _LAYERS, files=("dynamo", "torchscript*"), kinds=("merged",)),
            *(Expect(layer, (layer,), owner=layer) for layer in _LAYERS),
        ),
    )
}
