"""Module names that contain separators of paths, scopes and tags, non-ASCII characters, or digits."""

from __future__ import annotations

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, batch


class Net(nn.Module):
    # The second call of `a` must not be taken for a call of the module that is really called `a@1`.
    NAMES = ("a", "a@1", "b/c", "größe", "0", "l_1", "空間")

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            self.add_module(name, Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.NAMES:
            x = getattr(self, name)(x)
        return self.a(x)


# A path that ends like a call is always written with the number of its call.
_CALLS = ("a", "a@1@0", "b/c", "größe", "0", "l_1", "空間", "a@1")

CASES = {
    "": Case(
        title="unusual module names",
        build=lambda: (Net(), batch()),
        calls={
            "": _CALLS,
            "a": ("a.lin",),
            "a@1": ("a.lin@1",),
            "a@1@0": ("a@1.lin",),
            **{name: (f"{name}.lin",) for name in _CALLS[2:-1]},
        },
        expects=tuple(Expect(call, (call,), owner=call) for call in (*_CALLS, "b/c.lin", "größe.lin")),
    )
}
