"""What rounding explains: how much PyTorch's own results change if its modules round differently."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from modelexport.analysis import Difference
from modelexport.verification.difference import Tolerance, compare

Place = TypeVar("Place", bound=Hashable)

# The changes of the results of modules that are tried, in units in the last place: long sums add up many.
ROUNDINGS = (1, 4, 16)
# An error is not the file's if rounding changes PyTorch's own results by at least half as much.
_RATIO = 2


class Usual(NamedTuple):
    """A tensor of PyTorch's run, and its element type there."""

    content: np.ndarray
    dtype: str


def changes_by_rounding(
    usual: Mapping[Place, Usual],
    rounded: Iterable[Mapping[Place, np.ndarray]],
    tolerance: Tolerance,
    types: Iterable[str] = (),
) -> dict[Place, float]:
    """The largest change of each tensor in runs that round differently; infinite where its shape changes.

    A tensor that stays within tolerance is left out.
    """
    found: dict[Place, float] = {}
    for run in rounded:
        for place in usual.keys() & run.keys():
            content, dtype = usual[place]
            change = compare(run[place], content, tolerance, dtype, *types)
            if change.is_out and (change.problem or math.isfinite(change.absolute)):
                found[place] = max(found.get(place, 0.0), change.absolute)
    return found


def is_explained(difference: Difference, change: float | None) -> bool:
    """Whether a difference is no larger than rounding makes it in PyTorch itself."""
    return change is not None and difference.absolute <= _RATIO * change
