"""A module used through a method other than `forward`: it is not called, so the caller owns the nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.lin(x)) * 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x) - 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = Child()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(self.child.encode(x))


def _encoded(model: nn.Module, inputs: Any) -> torch.Tensor:
    return model.child.encode(inputs[0])


CASES = {
    "": Case(
        title="a method other than `forward`",
        build=lambda: (Net(), batch()),
        calls={"": ("child.lin", "child"), "child": ("child.lin@1",)},
        expects=(
            Expect(_encoded, ("",), owner=""),
            Expect("child.lin", ("child.lin",)),
            Expect("child.lin@1", ("child.lin@1",)),
            Expect("child", ("child",), owner="child"),
        ),
    )
}
