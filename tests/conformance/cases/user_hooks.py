"""Hooks that a user registered: what they compute belongs to the call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Block()
        self.after = Block()
        self.blk.register_forward_pre_hook(lambda module, args: (args[0] * 1.7,))
        self.blk.register_forward_hook(lambda module, args, result: torch.sin(result) * 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.blk(x))


def _scaled(model: nn.Module, inputs: Any) -> torch.Tensor:
    return inputs[0] * 1.7


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()
        self.adapter = Block()
        self.register_forward_hook(lambda module, args, result: module.adapter(result) * 2.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class InnerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blk = Adapted()
        self.register_forward_pre_hook(lambda module, args: (torch.cos(args[0]),))
        self.register_forward_hook(lambda module, args, result: torch.exp(result))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blk(x) + 0.7


def _cosine(model: nn.Module, inputs: Any) -> torch.Tensor:
    return torch.cos(inputs[0])


CASES = {
    "": Case(
        title="forward hooks of a user",
        build=lambda: (Net(), batch()),
        calls={"": ("blk", "after"), "blk": ("blk.lin",), "after": ("after.lin",)},
        expects=(
            Expect("blk.lin", ("blk.lin",), owner="blk.lin"),
            Expect("after", ("after",), owner="after"),
            Expect("blk", ("blk",), owner="blk"),
            Expect(_scaled, ("blk",), owner="blk"),
        ),
    ),
    "calling": Case(
        title="a hook that calls a module, and hooks of the root",
        build=lambda: (InnerNet(), batch()),
        calls={
            "": ("blk",),
            "blk": ("blk.inner", "blk.adapter"),
            "blk.inner": ("blk.inner.lin",),
            "blk.adapter": ("blk.adapter.lin",),
        },
        expects=(
            Expect("blk.adapter", ("blk.adapter",), owner="blk.adapter"),
            Expect("blk", ("blk",), owner="blk"),
            Expect("", ("",), owner=""),
            Expect(_cosine, ("",), owner=""),
        ),
    ),
}
