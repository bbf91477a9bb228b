"""A `ModuleList` and a `Sequential` whose children are called one by one: the container itself is never called."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, Scale, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ModuleList([Block(), Block()])
        self.steps = nn.Sequential(Block(), Scale(0.4))
        self.whole = nn.Sequential(Block(), nn.Sequential(Scale(0.9)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.list):
            x = block(x) + number
        for step in self.steps:
            x = step(x) * 0.7
        return self.whole(x)


_RUN = ("list.0", "list.1", "steps.0", "steps.1", "whole.0", "whole.1.0")

CASES = {
    "": Case(
        title="a hand-iterated `ModuleList` and `Sequential`",
        build=lambda: (Net(), batch()),
        calls={
            "": ("list.0", "list.1", "steps.0", "steps.1", "whole"),
            "list.0": ("list.0.lin",),
            "list.1": ("list.1.lin",),
            "steps.0": ("steps.0.lin",),
            "whole": ("whole.0", "whole.1"),
            "whole.0": ("whole.0.lin",),
            "whole.1": ("whole.1.0",),
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in _RUN),
    )
}
