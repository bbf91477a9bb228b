"""Models that are easy to disturb, that disturb what they can reach, and that end as they are told to."""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn


@torch.library.custom_op("modelexport_tests::untranslated", mutates_args=())
def untranslated(x: torch.Tensor) -> torch.Tensor:
    """An operator that has no translation to ONNX."""
    return x.clone()


@untranslated.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Meddler(nn.Module):
    """Changes in its forward what an export promises to put back, as user code may."""

    def __init__(self, victim: nn.Linear) -> None:
        super().__init__()
        self.victim = (victim,)  # in a tuple, so that it is no child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (victim,) = self.victim
        random.random()
        np.random.rand()
        torch.manual_seed(len(str(x.shape)))
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        torch.set_autocast_enabled("cpu", True)
        torch.set_grad_enabled(False)
        warnings.simplefilter("ignore")
        self.train(not self.training)
        victim.weight.requires_grad_(not victim.weight.requires_grad)
        victim.register_forward_hook(do_nothing)
        victim.forward = torch.neg  # type: ignore[method-assign,assignment]
        return x * 2


class Ending(nn.Module):
    """Ends the forward pass in the way it is told to."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x)


def succeed(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def fail(x: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"cannot take {tuple(x.shape)}")


def interrupt(*_: object) -> torch.Tensor:
    raise KeyboardInterrupt


def wait_for_a_signal(x: torch.Tensor) -> torch.Tensor:
    sys.stdout.write("tracing\n")
    sys.stdout.flush()
    time.sleep(60)
    return x


def do_nothing(*_: object) -> None:
    """A hook of the user's."""


def negated(x: torch.Tensor) -> torch.Tensor:
    return -x


class Net(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.frozen = nn.BatchNorm1d(width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.own = nn.Identity()
        self.meddler = Meddler(self.stem)
        self.tail = nn.ModuleList([Ending(act)])
        self.alias = self.tail[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.own(self.drop(self.norm(self.frozen(self.stem(x)))))
        return self.alias(self.meddler(x))


def net(act: Callable[[torch.Tensor], torch.Tensor] = succeed, *, width: int = 4, meddling: bool = True) -> nn.Module:
    """In train mode with a frozen BatchNorm in eval mode, a frozen parameter, hooks and a forward of its own."""
    torch.manual_seed(3)
    model = Net(act, width).train()
    if not meddling:
        model.meddler = nn.Identity()
    model.frozen.eval()
    model.frozen.weight.requires_grad_(False)
    model.own.forward = negated
    model.stem.register_forward_pre_hook(do_nothing, with_kwargs=True)
    model.stem.register_forward_hook(do_nothing)
    model.stem.register_forward_hook(do_nothing, with_kwargs=True, prepend=True)
    model.norm.register_forward_hook(do_nothing, always_call=True)
    model.register_state_dict_post_hook(do_nothing)
    model.register_load_state_dict_post_hook(do_nothing)
    return model


def example() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


class WritesThroughData(nn.Module):
    """Adds to its own weights in each call; torch's strict capture takes that, and decomposing it ends the process."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.lin.weight.data.add_(1)
        found: torch.Tensor = self.lin(x)
        return found
