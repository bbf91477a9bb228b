"""A model has control flow where its `forward` calls an operator of torch's, whatever the names in its code are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan as torch_scan

from modelexport.strategies.characteristics import characterize


class Base(nn.Module):
    def map(self, x: Any) -> Any:
        return x


class BuiltinMap(Base):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return list(map(torch.relu, [x]))


class OwnMethod(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.map(torch.utils.swap_tensors and x)


class Cond(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


class Imported(Base):
    def forward(self, x: torch.Tensor) -> Any:
        from torch._higher_order_ops import while_loop

        return while_loop(lambda y: y.sum() < 3, lambda y: (y + 1,), (x,))


class UnderAnotherName(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return torch_scan(lambda carry, y: (carry + y, carry), x[0], x)


class InALambda(Base):
    def forward(self, x: torch.Tensor) -> Any:
        return [torch.ops.higher_order.cond(y > 0, torch.relu, torch.neg, (y,)) for y in x]


@pytest.mark.parametrize(
    ("model", "has_control_flow"),
    [
        (BuiltinMap, False),
        (OwnMethod, False),
        (Cond, True),
        (Imported, True),
        (UnderAnotherName, True),
        (InALambda, True),
    ],
)
def test_control_flow_is_found_by_what_forward_calls(model: type[nn.Module], has_control_flow: bool) -> None:
    assert characterize(nn.Sequential(model())).has_control_flow is has_control_flow
