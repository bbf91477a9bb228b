"""Modules with operators that the TorchScript exporter has no translation for."""

from __future__ import annotations

import torch
from torch import nn


class Differences(nn.Module):
    """Torch can take its operator apart, called as a function and as a method."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.diff(self.lin(x)), x.diff(dim=0)


class Singular(nn.Module):
    """Torch has nothing smaller for its operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = torch.linalg.svd(x)[1]
        return values


class Ranks(nn.Module):
    """Torch can take one operator apart, and the exporter writes another for a type that it is not made for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.diff(x) != 0).cumsum(-1)
