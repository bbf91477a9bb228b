"""Convolution and BatchNorm are fused into one node; torch's metadata names only the BatchNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conformance.case import Case, Expect
from tests.conformance.parts import Scale, batch, settle_norms


class Net(nn.Module):
    def __init__(self, conv: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm
        self.act = Scale(1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.conv(x)))


class SharedNorm(nn.Module):
    """One BatchNorm after two convolutions; the output of one convolution is also used without it."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3)
        self.two = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        return self.norm(one) * self.norm(self.two(x)) + one


def _build(make: Any, shape: tuple[int, ...]) -> Any:
    def build() -> tuple[Any, ...]:
        model = make()
        settle_norms(model)
        return model, batch(*shape)

    return build


_CALLS = {"": ("conv", "norm", "act")}
_BOTH = (
    Expect("norm", ("conv", "norm"), files=("dynamo", "torchscript"), kinds=("fused",), owner="norm"),
    Expect("norm", ("norm",), files=("*-raw",)),
    Expect("act", ("act",)),
)

CASES = {
    "2d": Case(
        title="Conv2d and BatchNorm2d",
        build=_build(lambda: Net(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 6, 6)),
        calls=_CALLS,
        expects=_BOTH,
    ),
    "1d_without_bias": Case(
        title="Conv1d without bias and BatchNorm1d",
        build=_build(lambda: Net(nn.Conv1d(3, 4, 3, bias=False), nn.BatchNorm1d(4)), (2, 3, 6)),
        calls=_CALLS,
        expects=_BOTH,
    ),
    "transposed": Case(
        title="ConvTranspose2d and BatchNorm2d",
        build=_build(lambda: Net(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 5, 5)),
        calls=_CALLS,
        # The TorchScript exporter does not fuse these.
        expects=(
            Expect("norm", ("conv", "norm"), files=("dynamo",), kinds=("fused",), owner="norm"),
            Expect("norm", ("norm",), files=("*-raw", "torchscript")),
        ),
    ),
    "shared": Case(
        title="one BatchNorm after two convolutions, one of which cannot be fused",
        build=_build(SharedNorm, (2, 3, 6, 6)),
        calls={"": ("one", "norm", "two", "norm@1")},
        expects=(
            Expect("one", ("one",)),
            Expect("norm", ("norm",), files=("dynamo*",)),
            Expect("norm@1", ("two", "norm@1"), files=("dynamo", "torchscript"), kinds=("fused",)),
        ),
    ),
}
