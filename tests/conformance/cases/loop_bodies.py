"""Bodies of `scan` and `while_loop` that call modules."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, refused_below
from tests.conformance.parts import SIZE, Block, Scale, batch


class Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(SIZE, SIZE)
        self.cell = Block()
        self.after = Scale(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            following = self.cell(row) + carry * 0.5
            return following, following * 2

        last, rows = torch._higher_order_ops.scan(step, torch.zeros(2, SIZE), self.before(x), dim=0)
        return self.after(rows) + last


class While(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Block()
        self.after = Scale(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def going(number: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return number < 3

        def step(number: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return number + 1, self.cell(y) * 0.5

        _, y = torch._higher_order_ops.while_loop(going, step, (torch.tensor(0), x))
        return self.after(y)


_NO_LOOPS = {"torchscript*": "TorchScript has no scan and no while_loop"}
# The condition returns one tensor, and the exporter expected a tuple.
_NO_CONDITIONS = refused_below((2, 11), "dynamo*", "the condition of a while_loop is not converted")

CASES = {
    "scan": Case(
        title="a `scan` body that calls modules",
        build=lambda: (Scan(), batch(4, 2, SIZE)),
        calls={"": ("before", "cell", "after"), "cell": ("cell.lin",)},
        refused=_NO_LOOPS,
        loops=True,
    ),
    "while": Case(
        title="a `while_loop` body that calls modules",
        build=lambda: (While(), batch()),
        calls={"": ("cell", "after"), "cell": ("cell.lin",)},
        refused={**_NO_LOOPS, **_NO_CONDITIONS},
        loops=True,
    ),
}
