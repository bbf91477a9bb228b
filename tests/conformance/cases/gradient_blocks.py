"""Submodules under `no_grad` and `autocast`: the dynamo exporter loses their module stack."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, Scale, batch


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(Block(), Scale(0.8))
        self.trained = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        x = self.trained(x)
        with torch.no_grad():
            return self.frozen(x * 2)


class Nested(nn.Module):
    """A block inside a block, in a submodule that is itself called inside one."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blk = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return self.blk(x) * 3

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()
        self.after = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.inner(x) + 1
        return self.after(x)


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.two = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            x = self.one(x)
        return self.two(x)


_PLAIN = tuple(Expect(call, (call,), owner=call) for call in ("one", "two", "one.lin", "two.lin"))

CASES = {
    "no_grad": Case(
        title="submodules under `no_grad`",
        build=lambda: (NoGrad(), batch()),
        calls={
            "": ("frozen", "trained", "frozen@1"),
            "frozen": ("frozen.0", "frozen.1"),
            "frozen@1": ("frozen.0@1", "frozen.1@1"),
            "frozen.0": ("frozen.0.lin",),
            "frozen.0@1": ("frozen.0.lin@1",),
            "trained": ("trained.lin",),
        },
        expects=tuple(
            Expect(call, (call,), owner=call)
            for call in ("frozen.0", "frozen.1", "trained", "frozen.0@1", "frozen.1@1", "frozen.0.lin@1")
        ),
    ),
    "nested": Case(
        title="`enable_grad` inside `no_grad`",
        build=lambda: (Nested(), batch()),
        calls={
            "": ("inner", "after"),
            "inner": ("inner.blk",),
            "inner.blk": ("inner.blk.lin",),
            "after": ("after.lin",),
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in ("inner", "inner.blk", "inner.blk.lin", "after")),
    ),
    "autocast": Case(
        title="submodules under `autocast`",
        build=lambda: (Autocast(), batch()),
        calls={"": ("one", "two"), "one": ("one.lin",), "two": ("two.lin",)},
        expects=_PLAIN,
    ),
}
