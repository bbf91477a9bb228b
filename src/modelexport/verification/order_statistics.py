"""Order statistics of a tensor: a few dozen numbers that identify its values, in any layout and on any runtime.

Independent of `modelexport.graph.fingerprints`, by which strategies attribute nodes: a tensor that those mistake for
another must not be mistaken here too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# How many evenly spaced order statistics are kept, and how many elements at fixed positions.
_RANKS = 33
_POSITIONS = 24
# Tensors with fewer distinct values (masks, padding, constants) are often equal without being the same tensor.
_MIN_DISTINCT_VALUES = 5
# Numbers beyond this represent infinity in masks. As numbers they would dominate the scale.
_INFINITE_FROM = {2: 3e4, 4: 1e30, 8: 1e30}
_INFINITY = 1e6
# The allowed error relative to the scale, by bytes per element: runtimes sum in different orders.
_TOLERANCES = {2: 2e-2, 4: 5e-4, 8: 5e-4}
# A few units in the last place of a float32, relative to the scale.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class OrderStatistics:
    """The order statistics of a tensor.

    Attributes:
        kind: ``f``, ``i`` or ``b`` for floats, integers and booleans.
        ranks: Elements at fixed ranks: equal in every layout.
        positions: Elements at fixed positions: equal only in the same layout.
        scale: The root mean square.
        tolerance: The allowed error relative to the scale.
        is_distinctive: Whether equal values mean that it is the same tensor.
    """

    kind: str
    size: int
    shape: tuple[int, ...]
    ranks: npt.NDArray[np.float64]
    positions: npt.NDArray[np.float64]
    scale: float
    tolerance: float
    is_distinctive: bool

    def same_values(self, other: OrderStatistics) -> bool:
        """Whether both have the same elements within tolerance, in any layout."""
        return self.kind == other.kind and self.size == other.size and self._is_near(self.ranks, other.ranks, other)

    def is_copy(self, other: OrderStatistics) -> bool:
        """Whether both have exactly the same elements, in any layout: then one was computed by moving the other's."""
        return self.kind == other.kind and self.size == other.size and np.array_equal(self.ranks, other.ranks)

    def same_tensor(self, other: OrderStatistics) -> bool:
        """Whether both have the same shape and the same elements within tolerance, in the same layout."""
        same_values = self.shape == other.shape and self.same_values(other)
        return same_values and self._is_near(self.positions, other.positions, other)

    def is_rounded_copy(self, other: OrderStatistics) -> bool:
        """Whether both are the same tensor but for the rounding of the last digits."""
        same = self.shape == other.shape and self.kind == other.kind
        return same and self._is_near(self.ranks, other.ranks, other, _ROUNDING)

    def _is_near(
        self,
        mine: npt.NDArray[np.float64],
        theirs: npt.NDArray[np.float64],
        other: OrderStatistics,
        tolerance: float | None = None,
    ) -> bool:
        if tolerance is None:
            tolerance = max(self.tolerance, other.tolerance)
        return bool((np.abs(mine - theirs) <= tolerance * max(self.scale, other.scale)).all())


def order_statistics_of(array: Array, itemsize: int | None = None) -> OrderStatistics | None:
    """The order statistics of an array; None if it is empty or not numeric.

    Args:
        itemsize: Bytes per element when it was computed, if the array was widened since.
    """
    if array.size == 0 or array.dtype.kind not in "fiub":
        return None
    kind = {"f": "f", "b": "b"}.get(array.dtype.kind, "i")
    flat = np.ascontiguousarray(array).reshape(-1).astype(np.float64)
    tolerance = 1e-9
    if kind == "f":
        width = min(max(itemsize or array.itemsize, 2), 8)
        tolerance = _TOLERANCES[width]
        flat = np.nan_to_num(flat, nan=2 * _INFINITY, posinf=np.inf, neginf=-np.inf)
        infinite = np.abs(flat) >= _INFINITE_FROM[width]
        if infinite.any():
            flat[infinite] = np.sign(flat[infinite]) * _INFINITY
    ordered = np.sort(flat)
    ranks = ordered[np.linspace(0, flat.size - 1, _RANKS).astype(np.int64)]
    positions = flat[np.linspace(0, flat.size - 1, _POSITIONS).astype(np.int64)]
    finite = ordered[np.abs(ordered) < _INFINITY]
    scale = (float(np.sqrt(np.mean(finite**2))) if finite.size else 1.0) or 1.0
    distinct_values = int((np.diff(finite) > tolerance * scale * 1e-2).sum()) + 1
    return OrderStatistics(
        kind=kind,
        size=flat.size,
        shape=tuple(array.shape),
        ranks=ranks,
        positions=positions,
        scale=scale,
        tolerance=tolerance,
        is_distinctive=kind == "f" and distinct_values >= _MIN_DISTINCT_VALUES,
    )


class OrderStatisticsIndex:
    """Finds the order statistics with the same values as given ones."""

    def __init__(self, entries: Iterable[tuple[OrderStatistics, int]]) -> None:
        groups: dict[tuple[str, int], list[tuple[OrderStatistics, int]]] = {}
        for statistics, number in entries:
            groups.setdefault((statistics.kind, statistics.size), []).append((statistics, number))
        self._groups = {
            key: (
                np.stack([statistics.ranks for statistics, _ in members]),
                np.array([statistics.scale for statistics, _ in members]),
                np.array([statistics.tolerance for statistics, _ in members]),
                members,
            )
            for key, members in groups.items()
        }

    def find(self, wanted: OrderStatistics) -> list[tuple[OrderStatistics, int]]:
        """The entries with the same values within tolerance, in any layout."""
        group = self._groups.get((wanted.kind, wanted.size))
        if group is None:
            return []
        ranks, scales, tolerances, members = group
        allowed = np.maximum(tolerances, wanted.tolerance) * np.maximum(scales, wanted.scale)
        near = (np.abs(ranks - wanted.ranks) <= allowed[:, None]).all(axis=1)
        return [members[position] for position in np.flatnonzero(near)]
