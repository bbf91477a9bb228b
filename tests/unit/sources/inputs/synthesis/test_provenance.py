"""Tensors are tracked from the arguments of a call to the operation that fails."""

from __future__ import annotations

import torch
from torch import nn

from modelexport.sources.inputs.synthesis.failure_hints import Origins
from modelexport.sources.inputs.synthesis.trial_call import try_call


class Joined(nn.Module):
    """Mixes two arguments, then fails on one of them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 8)
        self.right = nn.Linear(5, 8)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.left(a) + self.right((b * 2).flatten(1))


def test_operands_of_failed_operation_have_the_arguments_they_were_computed_from_as_origins() -> None:
    failure = try_call(Joined(), (), {"a": torch.ones(2, 4), "b": torch.ones(2, 3, 2)})
    assert failure is not None
    assert [(operand.shape, operand.origins) for operand in failure.operands[:2]] == [((2, 6), ("b",)), ((8, 5), ())]
    assert failure.suspects == ("b",)


def test_argument_that_determines_the_size_is_the_first_origin() -> None:
    origins = Origins({"small": (small := torch.ones(2, 1)), "large": (large := torch.ones(2, 6))})
    with origins:
        mixed = small * large
    assert origins.of(mixed) == ("large", "small")
    assert origins.of(torch.ones(1)) == ()


def test_tensors_in_lists_and_mappings_are_tracked() -> None:
    inside, listed = torch.ones(2), torch.ones(3)
    origins = Origins({"pair": {"left": inside}, "rows": [listed]})
    assert origins.of(inside) == ("pair.left",)
    assert origins.of(listed) == ("rows",)
