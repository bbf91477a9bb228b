"""Results that hold the same numbers in another order, as what is chosen or sorted may where its keys are equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelexport.verification.difference import Tolerance, compare

# Records are put in order by a mix of their numbers; two that are mixed to nearly the same may be taken for each other,
# and then the results count as different.
_SEED = 0
# In the place of what is infinite or not a number.
_ODD = 7.0


class ResultPair(NamedTuple):
    """A result of a call, what it is compared with, and the element type that both had in PyTorch."""

    value: np.ndarray
    reference: np.ndarray
    dtype: str


def same_in_another_order(pairs: Sequence[ResultPair], tolerance: Tolerance) -> bool:
    """Whether one order of an axis makes all the first arrays the second ones, within tolerance.

    What is at one place of that axis stays together, over all pairs: rows stay rows, and an index keeps its weight.
    Each place of the axes before it has an order of its own.

    Args:
        pairs: Results of one call that are out of tolerance.
        tolerance: What counts as equal.
    """
    if not pairs or any(pair.value.shape != pair.reference.shape or not pair.value.size for pair in pairs):
        return False
    shapes = [pair.value.shape for pair in pairs]
    axes = range(min(map(len, shapes)))
    return any(
        _same_along(pairs, axis, tolerance) for axis in axes if len({shape[: axis + 1] for shape in shapes}) == 1
    )


def _same_along(pairs: Sequence[ResultPair], axis: int, tolerance: Tolerance) -> bool:
    ones = [_records(pair.value, axis) for pair in pairs]
    others = [_records(pair.reference, axis) for pair in pairs]
    order, other_order = _order(ones), _order(others)
    return all(
        not compare(_sorted(one, order), _sorted(other, other_order), tolerance, pair.dtype).is_out
        for one, other, pair in zip(ones, others, pairs, strict=True)
    )


def _records(array: np.ndarray, axis: int) -> np.ndarray:
    """The array as groups of records of numbers: the axes before the one, the one itself, and those behind it."""
    groups, size = math.prod(array.shape[:axis]), array.shape[axis]
    return array.reshape(groups, size, array.size // (groups * size))


def _order(arrays: Sequence[np.ndarray]) -> np.ndarray:
    generator = np.random.default_rng(_SEED)
    key = np.zeros(arrays[0].shape[:2])
    for array in arrays:
        numbers = array.astype(np.float64)
        finite = np.where(np.isfinite(numbers), numbers, _ODD)
        key += finite @ generator.uniform(0.5, 1.5, array.shape[2])
    return np.argsort(key, axis=1, kind="stable")


def _sorted(records: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.take_along_axis(records, order[:, :, None], axis=1)
