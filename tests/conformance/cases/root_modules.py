"""Roots of a class of torch.nn: a `Sequential`, a single layer, a container in a container."""

from __future__ import annotations

from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, Scale, batch

CASES = {
    "sequential": Case(
        title="a `Sequential` as root",
        build=lambda: (nn.Sequential(Block(), nn.Sequential(Scale(0.4), Block()), nn.Tanh()), batch()),
        calls={"": ("0", "1", "2"), "0": ("0.lin",), "1": ("1.0", "1.1"), "1.1": ("1.1.lin",)},
        expects=tuple(Expect(call, (call,), owner=call) for call in ("0", "1.0", "1.1", "2", "1.1.lin")),
    ),
    "layer": Case(
        title="a single layer as root",
        build=lambda: (nn.Linear(SIZE, 3), batch()),
        calls={},
        expects=(Expect("", ("",), owner=""),),
        judged=1,
    ),
}
