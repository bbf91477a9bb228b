"""Results in dicts, tuples and dataclasses, passed from module to module."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import SIZE, batch


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    states: tuple[torch.Tensor, ...]
    extra: dict[str, torch.Tensor]


torch.export.register_dataclass(Result, serialized_type_name="tests.conformance.Result")


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> Result:
        hidden = self.lin(x)
        return Result(torch.tanh(hidden), (hidden * 2, torch.sin(hidden)), {"squared": hidden * hidden})


class Consumer(nn.Module):
    def forward(self, given: Result, also: dict[str, Any]) -> dict[str, Any]:
        return {"sum": given.logits + given.states[1], "deep": {"kept": also["one"][0] * given.extra["squared"]}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.consumer = Consumer()

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        first = self.inner(x)
        return {"result": first, "more": self.consumer(first, {"one": (first.states[0],)})}


class Flat(Net):
    """The same with a result that both exporters support."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = super().forward(x)["more"]
        return more["sum"] * more["deep"]["kept"]


_CALLS = {"": ("inner", "consumer"), "inner": ("inner.lin",)}


def _kept(model: nn.Module, inputs: Any) -> torch.Tensor:
    hidden = model.inner.lin(inputs[0])
    return hidden * 2 * hidden * hidden


_EXPECTS = (
    Expect("inner.lin", ("inner.lin",), owner="inner.lin"),
    Expect("inner", ("inner",), owner="inner"),
    Expect("consumer", ("consumer",), owner="consumer"),
    Expect(_kept, ("consumer",), owner="consumer"),
)

CASES = {
    "": Case(
        title="nested dict and dataclass results",
        build=lambda: (Net(), batch()),
        calls=_CALLS,
        expects=_EXPECTS,
    ),
    "inside": Case(
        title="nested dict and dataclass results between modules",
        build=lambda: (Flat(), batch()),
        calls=_CALLS,
        expects=_EXPECTS,
    ),
}
