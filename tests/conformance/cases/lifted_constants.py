"""Tensors that a module creates in `forward` become constants or initializers of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.linspace(-1, 1, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tensor([0.3, 1.2, -0.7, 2.5, 0.1, -1.4])
        return x * made + self.kept


class Position(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x + torch.sin(torch.arange(SIZE, dtype=torch.float32) * 0.3))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.position = Position()
        self.again = Table()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.position(self.table(x)))


def _position(model: nn.Module, inputs: Any) -> torch.Tensor:
    return torch.sin(torch.arange(SIZE, dtype=torch.float32) * 0.3)


CASES = {
    "": Case(
        title="constants moved out of modules",
        build=lambda: (Net(), batch()),
        calls={"": ("table", "position", "again"), "position": ("position.lin",)},
        expects=(
            Expect("table", ("table",)),
            Expect("position.lin", ("position.lin",)),
            Expect("again", ("again",)),
            Expect(_position, ("position",), files=("dynamo-raw",)),
        ),
    )
}
