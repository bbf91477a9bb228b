"""Two modules that compute the same from the same input: CSE keeps the nodes of one and removes the other's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Block, Scale, batch


class Net(nn.Module):
    """Two equal modules, with equal weights if they have any, and an operator after each."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one = one
        self.other = other
        self.after = Scale(0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.after(self.other(x))


def _with_weights() -> tuple[Any, ...]:
    one, other = Block(), Block()
    other.load_state_dict(one.state_dict())
    return Net(one, other), batch()


def _sigmoid(model: nn.Module, inputs: Any) -> torch.Tensor:
    return torch.sigmoid(inputs[0])


CASES = {
    "parameterless": Case(
        title="two equal modules without weights, merged by CSE",
        build=lambda: (Net(Scale(3.0), Scale(3.0)), batch()),
        calls={"": ("one", "other", "after")},
        expects=(
            Expect("one", ("one", "other"), files=("dynamo", "torchscript*"), kinds=("merged",)),
            Expect("after", ("after",)),
        ),
    ),
    "decomposed": Case(
        title="two equal modules whose one operator becomes several nodes",
        build=lambda: (Net(nn.SiLU(), nn.SiLU()), batch()),
        calls={"": ("one", "other", "after")},
        expects=(
            Expect("one", ("one", "other"), files=("dynamo", "torchscript*"), kinds=("merged",)),
            # Inside of the operator.
            Expect(_sigmoid, ("one", "other"), files=("dynamo", "torchscript*"), kinds=("merged",)),
        ),
    ),
    "weights": Case(
        title="two modules with equal weights, merged by CSE",
        build=_with_weights,
        calls={"": ("one", "other", "after"), "one": ("one.lin",), "other": ("other.lin",)},
        expects=(
            Expect("one", ("one", "other"), files=("dynamo",), kinds=("merged",)),
            Expect("one.lin", ("one.lin", "other.lin"), files=("dynamo",), kinds=("merged",)),
        ),
    ),
}
