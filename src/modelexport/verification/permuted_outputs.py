"""Permuted outputs: the same values in another order, as sort and topk return them if keys are equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelexport.verification.difference import Tolerance, compare

# Rows are sorted by a random projection of their elements. Two rows with nearly the same projection may be swapped; the
# outputs then count as different.
_SEED = 0
# Replaces infinities and NaN in the projection.
_NONFINITE = 7.0


class OutputPair(NamedTuple):
    """An output of a call, its reference, and the types they were computed with."""

    value: np.ndarray
    reference: np.ndarray
    types: tuple[str, ...]


def is_permuted(pairs: Sequence[OutputPair], tolerance: Tolerance) -> bool:
    """Whether one permutation of an axis turns all values into their references, within tolerance.

    All pairs share the permutation: rows stay rows, and an index keeps its weight. Each position of the preceding axes
    has a permutation of its own.

    Args:
        pairs: Outputs of one call that are out of tolerance.
        tolerance: What counts as equal.
    """
    if not pairs or any(pair.value.shape != pair.reference.shape or not pair.value.size for pair in pairs):
        return False
    shapes = [pair.value.shape for pair in pairs]
    axes = range(min(map(len, shapes)))
    return any(
        _is_permuted_along(pairs, axis, tolerance) for axis in axes if len({shape[: axis + 1] for shape in shapes}) == 1
    )


def _is_permuted_along(pairs: Sequence[OutputPair], axis: int, tolerance: Tolerance) -> bool:
    values = [_rows(pair.value, axis) for pair in pairs]
    references = [_rows(pair.reference, axis) for pair in pairs]
    order, reference_order = _order(values), _order(references)
    return all(
        not compare(_sorted(value, order), _sorted(reference, reference_order), tolerance, *pair.types).is_out
        for value, reference, pair in zip(values, references, pairs, strict=True)
    )


def _rows(array: np.ndarray, axis: int) -> np.ndarray:
    """The array with three axes: the preceding axes, the axis, and the following axes."""
    groups, size = math.prod(array.shape[:axis]), array.shape[axis]
    return array.reshape(groups, size, array.size // (groups * size))


def _order(arrays: Sequence[np.ndarray]) -> np.ndarray:
    generator = np.random.default_rng(_SEED)
    key = np.zeros(arrays[0].shape[:2])
    for array in arrays:
        numbers = array.astype(np.float64)
        finite = np.where(np.isfinite(numbers), numbers, _NONFINITE)
        key += finite @ generator.uniform(0.5, 1.5, array.shape[2])
    return np.argsort(key, axis=1, kind="stable")


def _sorted(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.take_along_axis(rows, order[:, :, None], axis=1)
