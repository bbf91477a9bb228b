"""A tensor by a few dozen numbers: enough to know its values again, in whatever layout, after another runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Order statistics at this many evenly spaced ranks; elements at this many fixed places.
_RANKS = 33
_PLACES = 24
# Fewer different values than this are equal by chance: masks, padding, constants.
_TELLING = 5
# Numbers beyond this stand for infinity in masks; taken for numbers they would drown the others.
_BEYOND = {2: 3e4, 4: 1e30, 8: 1e30}
_INFINITY = 1e6
# How far, as a part of the tensor's size, a number may be off: runtimes sum in different orders.
_TOLERANCES = {2: 2e-2, 4: 5e-4, 8: 5e-4}


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of a tensor.

    Attributes:
        kind: ``f``, ``i`` or ``b`` for real and whole numbers and truth values.
        size: How many elements there are.
        shape: The shape.
        ranks: Order statistics: the same in every layout.
        places: Elements at fixed places: the same in the same layout only.
        scale: The size of the numbers.
        tolerance: How far, as part of the scale, an equal tensor may be off.
        telling: Whether equality means anything by itself.
    """

    kind: str
    size: int
    shape: tuple[int, ...]
    ranks: npt.NDArray[np.float64]
    places: npt.NDArray[np.float64]
    scale: float
    tolerance: float
    telling: bool

    def same_values(self, other: Fingerprint) -> bool:
        """Whether both hold the same numbers but for noise, in whatever layout."""
        return self.kind == other.kind and self.size == other.size and self._near(self.ranks, other.ranks, other)

    def is_moved(self, other: Fingerprint) -> bool:
        """Whether one is the other laid out anew or not: then the numbers are the same to the last bit."""
        return self.kind == other.kind and self.size == other.size and np.array_equal(self.ranks, other.ranks)

    def same(self, other: Fingerprint) -> bool:
        """Whether both are the same tensor but for noise."""
        return self.shape == other.shape and self.same_values(other) and self._near(self.places, other.places, other)

    def _near(self, mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64], other: Fingerprint) -> bool:
        allowed = max(self.tolerance, other.tolerance) * max(self.scale, other.scale)
        return bool((np.abs(mine - theirs) <= allowed).all())


def take_fingerprint(array: Array, itemsize: int | None = None) -> Fingerprint | None:
    """The fingerprint of an array; None for one that is empty or holds no numbers.

    Args:
        array: The numbers.
        itemsize: Bytes per element where they were computed, if the array was widened since.
    """
    if array.size == 0 or array.dtype.kind not in "fiub":
        return None
    kind = {"f": "f", "b": "b"}.get(array.dtype.kind, "i")
    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    tolerance = 1e-9
    if kind == "f":
        width = min(max(itemsize or array.itemsize, 2), 8)
        tolerance = _TOLERANCES[width]
        beyond = _BEYOND[width]
        flat = np.nan_to_num(flat, nan=2 * _INFINITY, posinf=np.inf, neginf=-np.inf)
        outside = np.abs(flat) >= beyond
        if outside.any():
            flat[outside] = np.sign(flat[outside]) * _INFINITY
    ordered = np.sort(flat)
    ranks = ordered[np.linspace(0, flat.size - 1, _RANKS).astype(np.int64)]
    places = flat[np.linspace(0, flat.size - 1, _PLACES).astype(np.int64)]
    inside = ordered[np.abs(ordered) < _INFINITY]
    scale = float(np.sqrt(np.mean(inside**2))) if inside.size else 1.0
    return Fingerprint(
        kind=kind,
        size=flat.size,
        shape=tuple(array.shape),
        ranks=ranks,
        places=places,
        scale=scale or 1.0,
        tolerance=tolerance,
        telling=kind == "f" and int((np.diff(inside) > tolerance * (scale or 1.0) * 1e-2).sum()) + 1 >= _TELLING,
    )


class FingerprintIndex:
    """Finds the fingerprints that hold the same values as a given one."""

    def __init__(self, known: Iterable[tuple[Fingerprint, int]]) -> None:
        groups: dict[tuple[str, int], list[tuple[Fingerprint, int]]] = {}
        for fingerprint, number in known:
            groups.setdefault((fingerprint.kind, fingerprint.size), []).append((fingerprint, number))
        self._groups = {
            key: (
                np.stack([fingerprint.ranks for fingerprint, _ in members]),
                np.array([fingerprint.scale for fingerprint, _ in members]),
                np.array([fingerprint.tolerance for fingerprint, _ in members]),
                members,
            )
            for key, members in groups.items()
        }

    def find(self, wanted: Fingerprint) -> list[tuple[Fingerprint, int]]:
        """Those with the same values, in whatever layout."""
        group = self._groups.get((wanted.kind, wanted.size))
        if group is None:
            return []
        ranks, scales, tolerances, members = group
        allowed = np.maximum(tolerances, wanted.tolerance) * np.maximum(scales, wanted.scale)
        near = (np.abs(ranks - wanted.ranks) <= allowed[:, None]).all(axis=1)
        return [members[position] for position in np.flatnonzero(near)]
