"""How far two arrays are apart: largest and relative error, cosine, and how that stands to a tolerance."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np

DEFAULT_RTOL = 1e-3
DEFAULT_ATOL = 1e-5
# Numbers come in pieces of this many, so that a large tensor is not there several times over as 64-bit floats. Larger
# pieces are slower, because they do not fit the processor's cache.
_PIECE = 1 << 16
# The distance from one to the next number, of the types that are coarser than the default tolerance asks for.
_SPACING = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
}
_COARSE_RTOL_SPACINGS = 8


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What counts as equal: ``|value - reference| <= atol + rtol * |reference|``, element by element.

    What is not given is the default: 1e-3 and 1e-5, and more for types that are coarser: of these, rtol is 8 and atol 1
    times the distance from one to the next number. Integers and booleans have to be equal.
    """

    rtol: float | None = None
    atol: float | None = None

    def limits(self, *dtypes: str) -> tuple[float, float]:
        """rtol and atol for values that have been through these element types."""
        spacing = max((_SPACING.get(dtype, 0.0) for dtype in dtypes), default=0.0)
        rtol = max(DEFAULT_RTOL, _COARSE_RTOL_SPACINGS * spacing) if self.rtol is None else self.rtol
        atol = max(DEFAULT_ATOL, spacing) if self.atol is None else self.atol
        return rtol, atol


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a tensor is from the one it is compared with.

    Attributes:
        absolute: The largest difference of two elements; infinite where only one of them is a finite number.
        relative: The norm of all differences by the norm of the reference.
        cosine: Of the angle between the two; None where one of them is zero.
        excess: The largest difference by what the tolerance allows for that element; above 1 it is out.
        elements: How many there are.
        outside: How many of them are out of tolerance.
        nonfinite: How many are infinite or not a number in one and something else in the other.
        problem: Why the two cannot be compared at all; then they count as out.
    """

    absolute: float
    relative: float
    cosine: float | None
    excess: float
    elements: int
    outside: int = 0
    nonfinite: int = 0
    problem: str = ""

    @property
    def is_out(self) -> bool:
        """Whether it is out of tolerance."""
        return self.excess > 1


def compare(value: np.ndarray, reference: np.ndarray, tolerance: Tolerance, *dtypes: str) -> Difference:
    """The difference of two arrays.

    Args:
        value: The one that is judged.
        reference: The one it is judged by.
        tolerance: What counts as equal.
        dtypes: The element types that they had, by torch's names, where the arrays' own are wider.
    """
    if value.shape != reference.shape:
        problem = f"its shape is {_shown(value)}, and not {_shown(reference)}"
        return Difference(math.inf, math.inf, None, math.inf, reference.size, reference.size, problem=problem)
    rtol, atol = tolerance.limits(value.dtype.name, reference.dtype.name, *dtypes)
    sums = _Sums(rtol, atol)
    ones, others = value.reshape(-1), reference.reshape(-1)
    for start in range(0, ones.size, _PIECE):
        sums.add(ones[start : start + _PIECE], others[start : start + _PIECE])
    return sums.difference(value.size)


class _Sums:
    def __init__(self, rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self._absolute = self._excess = 0.0
        self._squares = self._value_squares = self._reference_squares = self._products = 0.0
        self._outside = self._nonfinite = 0

    def add(self, value: np.ndarray, reference: np.ndarray) -> None:
        exact = "f" not in (value.dtype.kind, reference.dtype.kind)
        ones, others = value.astype(np.float64), reference.astype(np.float64)
        lost = 0
        finite = np.isfinite(ones) & np.isfinite(others)
        if not finite.all():
            same = (ones == others) | (np.isnan(ones) & np.isnan(others))
            lost = int((~finite & ~same).sum())
            ones, others = np.where(finite, ones, 0.0), np.where(finite, others, 0.0)
        apart = np.abs(ones - others)
        if exact:
            # Large integers may be the same as floats without being the same.
            apart = np.where(value != reference, np.maximum(apart, 1.0), 0.0)
            allowed = np.full_like(apart, 0.5)
        else:
            allowed = np.abs(others)
            allowed *= self._rtol
            allowed += self._atol
        if allowed.all():
            excess = np.divide(apart, allowed, out=allowed)
        else:
            # Where nothing is allowed, nothing apart is within and anything apart is out.
            with np.errstate(divide="ignore", invalid="ignore"):
                excess = np.where(apart > 0, apart / allowed, 0.0)
        self._absolute = max(self._absolute, float(apart.max()), math.inf if lost else 0.0)
        largest = float(excess.max())
        self._excess = max(self._excess, largest, math.inf if lost else 0.0)
        self._squares += _product(apart, apart)
        self._value_squares += _product(ones, ones)
        self._reference_squares += _product(others, others)
        self._products += _product(ones, others)
        self._outside += (int((excess > 1).sum()) if largest > 1 else 0) + lost
        self._nonfinite += lost

    def difference(self, elements: int) -> Difference:
        if self._nonfinite:
            relative = math.inf
        elif self._reference_squares:
            relative = math.sqrt(self._squares / self._reference_squares)
        else:
            relative = math.inf if self._squares else 0.0
        norms = math.sqrt(self._value_squares) * math.sqrt(self._reference_squares)
        cosine = min(1.0, max(-1.0, self._products / norms)) if norms else None
        return Difference(self._absolute, relative, cosine, self._excess, elements, self._outside, self._nonfinite)


def _product(one: np.ndarray, other: np.ndarray) -> float:
    # Not `numpy.dot`: its threads take longer to meet than a piece takes to multiply.
    return float(np.einsum("i,i->", one, other))


def _shown(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape)) or "that of a single number"
