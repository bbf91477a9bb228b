"""Weights that are computed: the module that computes them is called when the weight is accessed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, Block, batch


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(2, SIZE))
        self.up = nn.Parameter(torch.randn(SIZE, 2))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.up @ self.down * 0.5


class Adapter(nn.Module):
    """Like a LoRA layer: a frozen layer, and two small ones in parallel."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(SIZE, SIZE)
        self.lora_down = nn.Linear(SIZE, 2, bias=False)
        self.lora_up = nn.Linear(2, SIZE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora_up(self.lora_down(x)) * 2.0


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.after = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layer(x))


def _normed() -> tuple[Any, ...]:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, SIZE))
    with torch.no_grad():
        layer.parametrizations.weight.original0.uniform_(0.5, 2)
    return Net(layer), batch()


def _low_rank() -> tuple[Any, ...]:
    layer = nn.Linear(SIZE, SIZE)
    nn.utils.parametrize.register_parametrization(layer, "weight", LowRank())
    return Net(layer), batch()


_LIST = "layer.parametrizations.weight"
_CALLS = {
    "": ("layer", "after"),
    "layer": (_LIST,),
    _LIST: (f"{_LIST}.0",),
    "after": ("after.lin",),
}


def _weight(model: nn.Module, inputs: Any) -> torch.Tensor:
    return model.layer.weight


_COMPUTED = (
    Expect("layer", ("layer",), owner="layer"),
    # Where the weight is still computed, the parametrization does it.
    Expect(_weight, (f"{_LIST}.0",), owner=f"{_LIST}.0", files=("dynamo-raw", "torchscript*")),
)
# A weight that needs no input is computed once, when the file is made: a constant is left.
_FOLDED = {"dynamo": (f"{_LIST}.0",)}

CASES = {
    "weight_norm": Case(title="`weight_norm`", build=_normed, calls=_CALLS, expects=_COMPUTED, removed=_FOLDED),
    "low_rank": Case(
        title="a parametrization of low rank", build=_low_rank, calls=_CALLS, expects=_COMPUTED, removed=_FOLDED
    ),
    "adapter": Case(
        title="a LoRA-like adapter",
        build=lambda: (Net(Adapter()), batch()),
        calls={
            "": ("layer", "after"),
            "layer": ("layer.base", "layer.lora_down", "layer.lora_up"),
            "after": ("after.lin",),
        },
        expects=tuple(
            Expect(call, (call,), owner=call)
            for call in ("layer", "layer.base", "layer.lora_down", "layer.lora_up", "after")
        ),
    ),
}
