"""Shape arithmetic with dynamic axes: the exporter computes sizes once for all modules, and records no module."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Dynamic, Expect
from tests.conformance.parts import SIZE, batch


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_size, length, _ = x.shape
        split = self.lin(x).reshape(batch_size, length, 2, SIZE // 2).transpose(1, 2)
        return torch.tanh(split).transpose(1, 2).reshape(batch_size, length, SIZE)


class Position(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(torch.arange(x.shape[1]))


class Spread(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.full((x.shape[0], 1), 0.5) * x.mean((1, 2))[:, None]
        return x * weight.expand(x.shape[0], x.shape[1])[:, :, None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = Position()
        self.one = Heads()
        self.two = Heads()
        self.spread = Spread()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.spread(self.two(self.one(self.position(x))))


_AUTO = torch.export.Dim.AUTO

CASES = {
    "": Case(
        title="shape operations with dynamic axes",
        build=lambda: (Net(), batch(3, 4, SIZE)),
        calls={
            "": ("position", "one", "two", "spread"),
            "position": ("position.table",),
            "one": ("one.lin",),
            "two": ("two.lin",),
        },
        expects=(
            *(Expect(call, (call,), owner=call) for call in ("position", "one", "two", "spread", "one.lin", "two.lin")),
            Expect("position.table", ("position.table",), files=("*-raw", "*-dynamic")),
        ),
        # Without dynamic axes the positions are known, and what is looked up for them is a constant.
        removed={"dynamo": ("position.table",), "torchscript": ("position.table",)},
        dynamic=Dynamic(({0: _AUTO, 1: _AUTO},), {"x": {0: "batch", 1: "length"}}, ("x",)),
    )
}
