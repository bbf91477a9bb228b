"""Factories for the command line's MODEL argument: good ones, and each way one can be bad."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

# Where `waiting` says that its forward pass has begun.
STARTED_VARIABLE = "MODELEXPORT_TEST_STARTED"

not_a_factory = 42


class Stage(nn.Module):
    """A class of the model's own around two classes of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.lin(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.stage = Stage()
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stage(self.conv(x).mean((2, 3)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(torch.relu(self.encode(x)))


class Unwilling(nn.Module):
    """Takes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not today")


def unwilling() -> Unwilling:
    return Unwilling()


class Waiting(nn.Module):
    """Says that its forward pass has begun, and then takes its time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Path(os.environ[STARTED_VARIABLE]).touch()
        time.sleep(120)
        return x + 1


def net() -> nn.Module:
    return Net()


def half_net() -> nn.Module:
    return Net().half()


def net_with_inputs() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)),)


def seeded_net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """With the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return net_with_inputs()


def talkative() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    print("a factory may print what it likes")  # noqa: T201  what a user's factory does
    return net_with_inputs()


def tied() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Tied(), (torch.ones(2, 4),)


def waiting() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Waiting(), (torch.ones(2),)


class Branches(nn.Module):
    """A `torch.cond`, which torch traces when the model runs, too: sizes that do not fit are errors in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, self.lin, torch.negative, (x,))
        return result


def branches() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Branches(), (torch.ones(2, 4),)


def raises() -> nn.Module:
    raise RuntimeError("the weights\nare elsewhere")


def returns_text() -> str:
    return "a model, honestly"


def needs_arguments(size: int) -> nn.Module:
    return nn.Linear(size, size)


def cached_by_timm(name: str, home: str) -> nn.Module:
    """A model of timm, whose weights it puts where timm's downloads go."""
    import timm
    from safetensors.torch import save_model

    from tests.support.tiny_models import put_in_cache

    model = timm.create_model(name)
    folder = Path(home, name)
    folder.mkdir(parents=True)
    save_model(model, str(folder / "model.safetensors"))
    put_in_cache(folder, Path(home), model.pretrained_cfg["hf_hub_id"])
    return model
