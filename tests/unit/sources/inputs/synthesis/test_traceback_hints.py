"""The lines of code of a traceback tell which argument is wrong."""

from __future__ import annotations

import torch
from torch import nn

from modelexport.sources.inputs.synthesis.trial_call import try_call


class Guarded(nn.Module):
    """Raises an error that names nothing, under a condition over several lines that does."""

    def forward(self, query: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if (
            # Any number of axes but five.
            other.dim() != 5
        ):
            raise ValueError("that will not do")
        return query


def test_condition_of_a_raised_error_names_the_argument() -> None:
    failure = try_call(Guarded(), (), {"query": torch.ones(1), "other": torch.ones(1)})
    assert failure is not None
    assert failure.suspects == ("other",)
    assert "other" in failure.names
    assert "query" not in failure.names
