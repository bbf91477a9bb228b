"""Small modules that several cases use."""

from __future__ import annotations

import torch
from torch import nn

SIZE = 6


class Block(nn.Module):
    """A linear layer, with operators of its own before and after it."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.lin = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.lin(x)) + x


class Scale(nn.Module):
    """Operators without weights."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * self.by)


def batch(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (3, SIZE)))


def settle_norms(model: nn.Module) -> None:
    """Give BatchNorms statistics that change their input."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 2)
                module.bias.normal_()
