"""Fingerprints of tensors: a few hundred bytes that identify a tensor, also as another runtime computes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Group = tuple[str, int, int, int, int]

_MOMENTS = 5
_EXTREMES = 6
_SAMPLE = 32
# The features that do not depend on the order of the elements come first.
_UNORDERED = _MOMENTS + 2 * _EXTREMES
# How many elements are summarized at a time.
_CHUNK = 2**20
_ROW = 64

# Tensors with fewer distinct values (masks, padding, constants) are often equal without being the same tensor.
_MIN_DISTINCT_VALUES = 5
# The allowed error relative to the scale, by bytes per element: runtimes sum in different orders.
_TOLERANCES = {1: 5e-2, 2: 2e-2, 4: 3e-4, 8: 3e-4}
_EXACT = 1e-6
# Of several tensors within the tolerance only the closest match, and those equally close within numerical noise.
_NOISE = 1e-2
_CLOSEST = 4.0
# Numbers beyond these represent infinity in masks. As numbers they would dominate the moments.
_INFINITE_FROM = {1: 3e2, 2: 3e4, 4: 1e15, 8: 1e15}
_INFINITY = 1e30
_NAN = 2e30
_GOLDEN = 0.6180339887498949


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of a tensor.

    Attributes:
        group: Class of the element type, and the numbers of elements, of NaN, of infinities and of minus infinities.
        shape: The shape.
        features: Moments, extremes, and a sample of the elements in row-major order.
        scale: The root mean square.
        tolerance: The allowed error relative to the scale.
        is_distinctive: Whether equal values mean that it is the same tensor.
    """

    group: Group
    shape: tuple[int, ...]
    features: npt.NDArray[np.float32]
    scale: float
    tolerance: float
    is_distinctive: bool

    @property
    def is_operand(self) -> bool:
        """Whether it may be an operand: not a size or an axis (an integer), and not an option (a scalar)."""
        return self.group[0] == "f" and self.group[1] > 1

    def same_values(self, other: Fingerprint) -> bool:
        """Whether both have the same elements within tolerance, in any layout."""
        return self.group == other.group and self._distance(other, slice(0, _UNORDERED)) <= self._allowed(other)

    def same_order(self, other: Fingerprint) -> bool:
        """Whether both have the same elements within tolerance, in the same row-major order and any shape."""
        return self.same_values(other) and self._distance(other, slice(_UNORDERED, None)) <= self._allowed(other)

    def same_layout(self, other: Fingerprint) -> bool:
        """Whether both have the same shape and the same elements within tolerance."""
        return self.shape == other.shape and self.same_order(other)

    def is_copy(self, other: Fingerprint) -> bool:
        """Whether both have exactly the same elements, in any layout: one was computed by moving the other's."""
        extremes = slice(_MOMENTS, _UNORDERED)
        return (
            self.group == other.group
            and bool((self.features[extremes] == other.features[extremes]).all())
            and self._distance(other, slice(0, _MOMENTS)) <= _EXACT
        )

    def _allowed(self, other: Fingerprint) -> float:
        return max(self.tolerance, other.tolerance)

    def _distance(self, other: Fingerprint, part: slice) -> float:
        mine, theirs = self.features[part], other.features[part]
        return float(np.max(np.abs(mine - theirs) / (self.scale + np.abs(mine))))


def take_fingerprint(array: Array, itemsize: int | None = None, moved: Fingerprint | None = None) -> Fingerprint | None:
    """The fingerprint of an array; None if it is empty or not numeric.

    Args:
        array: The array.
        itemsize: Bytes per element when it was computed, if the array was widened since.
        moved: The fingerprint of an array of which this one is a view with the same elements.
    """
    if array.size == 0 or array.dtype.kind not in "fiub":
        return None
    if array.dtype.kind != "f":
        kind, tolerance, beyond = "b" if array.dtype.kind == "b" else "i", _EXACT, np.inf
    else:
        width = min(itemsize or array.itemsize, 8)
        kind, tolerance, beyond = "f", _TOLERANCES[width], _INFINITE_FROM[width]
    sample = _sample(array, beyond)
    if moved is not None:
        features = np.concatenate([moved.features[:_UNORDERED], sample.astype(np.float32)])
        return dataclasses.replace(moved, shape=array.shape, features=features)
    flat = array.ravel(order="K")
    sums, extremes, counts = _summarize(flat, beyond)
    mean, absolute, square, cube, fourth = sums / max(flat.size - sum(counts), 1)
    scale = float(np.sqrt(square)) or 1.0
    moments = [mean, absolute, scale, cube / scale**2, fourth / scale**3]
    return Fingerprint(
        group=(kind, flat.size, *counts),
        shape=array.shape,
        features=np.concatenate([moments, extremes, sample]).astype(np.float32),
        scale=scale,
        tolerance=tolerance,
        is_distinctive=kind == "f" and _has_many_values(flat, sample, beyond),
    )


def _summarize(flat: Array, beyond: float) -> tuple[Array, Array, tuple[int, int, int]]:
    """Sums of powers, smallest and largest elements, and the numbers of NaN, infinities and minus infinities."""
    sums = np.zeros(_MOMENTS)
    low, high = np.zeros(0), np.zeros(0)
    undefined = above = below = 0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        finite = np.abs(part) < beyond
        if not finite.all():
            rest, part = part[~finite], part[finite]
            undefined += int(np.isnan(rest).sum())
            above += int((rest > 0).sum())
            below += int((rest < 0).sum())
        square = part * part
        sums += [part.sum(), np.abs(part).sum(), square.sum(), (square * part).sum(), (square * square).sum()]
        low = _smallest(np.concatenate([low, _rows_of_smallest(part)]))
        high = -_smallest(np.concatenate([-high, _rows_of_smallest(-part)]))
    extremes = np.zeros((2, _EXTREMES))
    extremes[0, : low.size], extremes[1, : high.size] = np.sort(low), np.sort(high)
    return sums, extremes.reshape(-1), (undefined, above, below)


def _rows_of_smallest(part: Array) -> Array:
    """The rows with the smallest minima: they contain the smallest elements, and are much faster to find."""
    if part.size <= _ROW * _EXTREMES:
        return part
    rows = part[: part.size // _ROW * _ROW].reshape(-1, _ROW)
    places = np.argpartition(rows.min(axis=1), _EXTREMES - 1)[:_EXTREMES]
    return np.concatenate([rows[places].reshape(-1), part[rows.size :]])


def _smallest(part: Array) -> Array:
    return np.partition(part, _EXTREMES - 1)[:_EXTREMES] if part.size > _EXTREMES else part


def _sample(array: Array, beyond: float) -> Array:
    places = np.arange(min(array.size, _SAMPLE))
    if array.size > _SAMPLE:
        # Spread evenly, without a period that matches an axis.
        places = (np.arange(1, _SAMPLE + 1) * _GOLDEN % 1.0 * array.size).astype(np.int64)
    elements = np.atleast_1d(array)
    taken = elements[np.unravel_index(places, elements.shape)].astype(np.float64)
    outside = np.abs(taken) >= beyond
    taken[outside] = np.sign(taken[outside]) * _INFINITY
    taken[np.isnan(taken)] = _NAN
    return np.concatenate([taken, np.zeros(_SAMPLE - taken.size)])


def _has_many_values(flat: Array, sample: Array, beyond: float) -> bool:
    seen = sample[: flat.size]
    if np.unique(seen[np.abs(seen) < beyond]).size >= _MIN_DISTINCT_VALUES:
        return True
    # A sample of a mostly zero tensor has few values: check all elements.
    return flat.size > _SAMPLE and np.unique(flat[np.abs(flat) < beyond]).size >= _MIN_DISTINCT_VALUES


class ValueIndex:
    """Finds the fingerprints that are equal to a given one."""

    def __init__(self, fingerprints: Sequence[Fingerprint | None]) -> None:
        groups: dict[Group, list[tuple[int, Fingerprint]]] = {}
        for number, known in enumerate(fingerprints):
            if known is not None:
                groups.setdefault(known.group, []).append((number, known))
        self._groups = {
            group: (
                np.array([number for number, _ in members]),
                np.stack([known.features[:_UNORDERED] for _, known in members]),
                np.array([known.tolerance for _, known in members]),
            )
            for group, members in groups.items()
        }

    def find(self, wanted: Fingerprint) -> list[int]:
        """The positions of the fingerprints with the same values, in order; of several near ones only the closest."""
        if wanted.group not in self._groups:
            return []
        numbers, features, tolerances = self._groups[wanted.group]
        mine = wanted.features[:_UNORDERED]
        distances = np.max(np.abs(features - mine) / (wanted.scale + np.abs(mine)), axis=1)
        closest = max(float(distances.min()) * _CLOSEST, wanted.tolerance * _NOISE)
        near = (distances <= np.maximum(tolerances, wanted.tolerance)) & (distances <= closest)
        return [int(number) for number in numbers[near]]
