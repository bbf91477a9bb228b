"""A second call of `l` and a module with the name `l_1`: TorchScript writes the same scope for both."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = Block()
        self.l_1 = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l_1(self.l(self.l(x)))


CASES = {
    "": Case(
        title="`l` called twice, and a module `l_1`",
        build=lambda: (Net(), batch()),
        calls={"": ("l", "l@1", "l_1"), "l": ("l.lin",), "l@1": ("l.lin@1",), "l_1": ("l_1.lin",)},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("l", "l@1", "l_1", "l.lin@1", "l_1.lin")),
    )
}
