"""Fingerprints of tensors: a few hundred bytes by which to know a tensor again after another runtime computed it."""

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
# Elements that are looked at together.
_CHUNK = 2**20
_ROW = 64

# Fewer distinct values than this say nothing: masks, padding and constants are equal by chance.
_TELLING = 5
# How far, as a part of its size, a number may be off, by bytes per element: runtimes sum in different orders.
_TOLERANCES = {1: 5e-2, 2: 2e-2, 4: 3e-4, 8: 3e-4}
_EXACT = 1e-6
# Of several tensors within the tolerance the closest is the right one, and those as close as noise makes them.
_NOISE = 1e-2
_CLOSEST = 4.0
# Numbers beyond these stand for infinity in masks; taken for numbers, they would drown the others.
_BEYOND = {1: 3e2, 2: 3e4, 4: 1e15, 8: 1e15}
_INFINITE = 1e30
_UNDEFINED = 2e30
_GOLDEN = 0.6180339887498949


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of a tensor.

    Attributes:
        group: Class of the element type, number of elements, of undefined, of infinite and minus infinite ones.
        shape: The shape.
        features: Moments, extremes, and a sample of the elements in row-major order.
        scale: The root mean square.
        tolerance: How far, as part of the scale, an equal tensor may be off.
        telling: Whether equality means anything by itself.
    """

    group: Group
    shape: tuple[int, ...]
    features: npt.NDArray[np.float32]
    scale: float
    tolerance: float
    telling: bool

    @property
    def is_operand(self) -> bool:
        """Whether it is something to compute with: sizes and axes are whole numbers, options single ones."""
        return self.group[0] == "f" and self.group[1] > 1

    def same_values(self, other: Fingerprint) -> bool:
        """Whether both hold the same numbers but for noise, in whatever layout."""
        return self.group == other.group and self._distance(other, slice(0, _UNORDERED)) <= self._allowed(other)

    def same_order(self, other: Fingerprint) -> bool:
        """Whether both hold the same numbers but for noise, in the same order whatever the shape."""
        return self.same_values(other) and self._distance(other, slice(_UNORDERED, None)) <= self._allowed(other)

    def same_layout(self, other: Fingerprint) -> bool:
        """Whether both hold the same numbers but for noise, in the same order and shape."""
        return self.shape == other.shape and self.same_order(other)

    def is_moved(self, other: Fingerprint) -> bool:
        """Whether one is the other, laid out anew or not: then the numbers are the same to the last bit."""
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
    """The fingerprint of an array; None for one that is empty or holds no numbers.

    Args:
        array: The numbers.
        itemsize: Bytes of an element where it was computed, if the array was widened since.
        moved: The fingerprint of an array of which this one is a view with the same elements.
    """
    if array.size == 0 or array.dtype.kind not in "fiub":
        return None
    if array.dtype.kind != "f":
        kind, tolerance, beyond = "b" if array.dtype.kind == "b" else "i", _EXACT, np.inf
    else:
        width = min(itemsize or array.itemsize, 8)
        kind, tolerance, beyond = "f", _TOLERANCES[width], _BEYOND[width]
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
        telling=kind == "f" and _has_many_values(flat, sample, beyond),
    )


def _summarize(flat: Array, beyond: float) -> tuple[Array, Array, tuple[int, int, int]]:
    """Sums of powers, smallest and largest elements, and how many are undefined, infinite, minus infinite."""
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
    """The rows with the smallest minima, which hold the smallest elements: much faster to find than those."""
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
        # Spread evenly, in step with no axis.
        places = (np.arange(1, _SAMPLE + 1) * _GOLDEN % 1.0 * array.size).astype(np.int64)
    elements = np.atleast_1d(array)
    taken = elements[np.unravel_index(places, elements.shape)].astype(np.float64)
    outside = np.abs(taken) >= beyond
    taken[outside] = np.sign(taken[outside]) * _INFINITE
    taken[np.isnan(taken)] = _UNDEFINED
    return np.concatenate([taken, np.zeros(_SAMPLE - taken.size)])


def _has_many_values(flat: Array, sample: Array, beyond: float) -> bool:
    seen = sample[: flat.size]
    if np.unique(seen[np.abs(seen) < beyond]).size >= _TELLING:
        return True
    # What is mostly zeros shows little in a sample: look at the whole.
    return flat.size > _SAMPLE and np.unique(flat[np.abs(flat) < beyond]).size >= _TELLING


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
        """The numbers of the fingerprints that hold the same values, in order; of near ones only the closest."""
        if wanted.group not in self._groups:
            return []
        numbers, features, tolerances = self._groups[wanted.group]
        mine = wanted.features[:_UNORDERED]
        distances = np.max(np.abs(features - mine) / (wanted.scale + np.abs(mine)), axis=1)
        closest = max(float(distances.min()) * _CLOSEST, wanted.tolerance * _NOISE)
        near = (distances <= np.maximum(tolerances, wanted.tolerance)) & (distances <= closest)
        return [int(number) for number in numbers[near]]
