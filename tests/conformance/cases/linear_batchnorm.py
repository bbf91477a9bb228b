"""Linear and BatchNorm1d: if the optimizer fuses them into one node, that node names both."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch, settle_norms


class Net(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, 5, bias=bias)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.lin(x)))


def _build(bias: bool) -> Any:
    def build() -> tuple[Any, ...]:
        model = Net(bias=bias)
        settle_norms(model)
        return model, batch()

    return build


CASES = {
    "": Case(
        title="Linear and BatchNorm1d",
        build=_build(True),
        calls={"": ("lin", "norm")},
        expects=(Expect("norm", ("lin", "norm"), files=("dynamo",), kinds=("fused",), owner="norm"),),
    ),
    "without_bias": Case(
        title="Linear without bias and BatchNorm1d",
        build=_build(False),
        calls={"": ("lin", "norm")},
        expects=(Expect("norm", ("lin", "norm"), files=("dynamo",), kinds=("fused",), owner="norm"),),
    ),
}
