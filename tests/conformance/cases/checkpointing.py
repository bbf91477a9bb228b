"""Submodules called through `torch.utils.checkpoint`."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.two = Block()

    def _pair(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x)) * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.one, x, use_reentrant=False)
        return checkpoint(self._pair, x, use_reentrant=False) + 1


CASES = {
    "": Case(
        title="`torch.utils.checkpoint`",
        build=lambda: (Net(), batch()),
        calls={
            "": ("one", "one@1", "two"),
            "one": ("one.lin",),
            "one@1": ("one.lin@1",),
            "two": ("two.lin",),
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in ("one", "one@1", "two", "")),
    )
}
