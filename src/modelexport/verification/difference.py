"""The difference of two arrays: errors, excess over a tolerance, whether one is a permutation of the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from modelexport.analysis import Difference
from modelexport.graph import ELEMENT_TYPES, subgraphs_of

DEFAULT_RTOL = 1e-3
DEFAULT_ATOL = 1e-5
# Elements are compared in chunks, so that a large tensor does not exist several times as 64-bit floats. Larger chunks
# are slower, because they do not fit into the processor's cache.
_CHUNK = 1 << 16
# The distance from 1 to the next number, for types that are coarser than the default tolerance.
_SPACING = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
}
# Of these, numpy has float16 only, and onnxruntime has few kernels for the others on a CPU.
RARE_FLOATS = _SPACING.keys() - {"float16"}
_COARSE_RTOL_SPACINGS = 8
# Integers that represent floats: the distance between two of them, relative to the largest element of the tensor.
EIGHT_BITS = "8-bit integers"
FOUR_BITS = "4-bit integers"
_STEPS = {EIGHT_BITS: 2.0**-7, FOUR_BITS: 2.0**-3}
# A quantized product rounds weights and inputs, each by half a step, and by more where values are clipped.
_ATOL_STEPS = 4
# Rows are sorted by a random projection of their elements. Two rows with nearly the same projection may be swapped; the
# outputs then count as different.
_SEED = 0
# Replaces infinities and NaN in the projection.
_NONFINITE = 7.0
_FLOATS = {element: name for name, element in ELEMENT_TYPES.items() if element.is_floating_point()} | {
    element: element.name.lower().replace("float8e", "float8_e") for element in ir.DataType if "FLOAT8" in element.name
}
_INTEGERS = {
    ir.DataType.INT8: EIGHT_BITS,
    ir.DataType.UINT8: EIGHT_BITS,
    ir.DataType.INT4: FOUR_BITS,
    ir.DataType.UINT4: FOUR_BITS,
}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What counts as equal: ``|value - reference| <= atol + rtol * |reference|``, element by element.

    The defaults are 1e-3 and 1e-5, and more for coarser types: 8 times and 1 times the distance from 1 to the next
    number, for quantized values 8 times and 4 times the distance between two, with atol relative to the largest element
    of the tensor. Integers and booleans must be equal. `least_atol` is the default of atol for 32-bit floats.
    """

    rtol: float | None = None
    atol: float | None = None
    least_atol: float = DEFAULT_ATOL

    def limits(self, *types: str, largest: float = 0.0) -> tuple[float, float]:
        """rtol and atol for elements that were stored in, or computed from, these types; `largest` is the largest."""
        spacing = max((_SPACING.get(name, 0.0) for name in types), default=0.0)
        step = max((_STEPS.get(name, 0.0) for name in types), default=0.0)
        rtol = max(DEFAULT_RTOL, _COARSE_RTOL_SPACINGS * max(spacing, step)) if self.rtol is None else self.rtol
        atol = max(self.least_atol, spacing, _ATOL_STEPS * step * largest) if self.atol is None else self.atol
        return rtol, atol


def compare(value: np.ndarray, reference: np.ndarray, tolerance: Tolerance, *types: str) -> Difference:
    """The difference of two arrays.

    `types` are those that the elements had before they were widened, and those they were computed from: names of
    torch, `EIGHT_BITS` or `FOUR_BITS`.
    """
    if value.shape != reference.shape:
        return not_comparable(f"its shape is {_shape_text(value)} instead of {_shape_text(reference)}", reference.size)
    is_quantized = not _STEPS.keys().isdisjoint(types) and reference.dtype.kind == "f"
    largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0)) if is_quantized else 0.0
    rtol, atol = tolerance.limits(value.dtype.name, reference.dtype.name, *types, largest=largest)
    sums = _Sums(rtol, atol)
    values, references = value.reshape(-1), reference.reshape(-1)
    for start in range(0, values.size, _CHUNK):
        sums.add(values[start : start + _CHUNK], references[start : start + _CHUNK])
    return sums.difference(value.size)


def not_comparable(problem: str, elements: int = 0) -> Difference:
    """The difference of two tensors that cannot be compared: it is out of tolerance."""
    return Difference(math.inf, math.inf, None, math.inf, elements, elements, problem=problem)


class _Sums:
    def __init__(self, rtol: float, atol: float) -> None:
        self._rtol, self._atol = rtol, atol
        self._absolute = self._excess = 0.0
        self._squares = self._value_squares = self._reference_squares = self._products = 0.0
        self._outside = self._nonfinite = 0

    def add(self, value: np.ndarray, reference: np.ndarray) -> None:
        exact = "f" not in (value.dtype.kind, reference.dtype.kind)
        values, references = value.astype(np.float64), reference.astype(np.float64)
        nonfinite = 0
        finite = np.isfinite(values) & np.isfinite(references)
        if not finite.all():
            same = (values == references) | (np.isnan(values) & np.isnan(references))
            nonfinite = int((~finite & ~same).sum())
            values, references = np.where(finite, values, 0.0), np.where(finite, references, 0.0)
        errors = np.abs(values - references)
        if exact:
            # Different large integers may be equal as floats.
            errors = np.where(value != reference, np.maximum(errors, 1.0), 0.0)
            allowed = np.full_like(errors, 0.5)
        else:
            allowed = np.abs(references)
            allowed *= self._rtol
            allowed += self._atol
        if allowed.all():
            excess = np.divide(errors, allowed, out=allowed)
        else:
            # With a tolerance of zero, only equal elements are within.
            with np.errstate(divide="ignore", invalid="ignore"):
                excess = np.where(errors > 0, errors / allowed, 0.0)
        self._absolute = max(self._absolute, float(errors.max()), math.inf if nonfinite else 0.0)
        largest = float(excess.max())
        self._excess = max(self._excess, largest, math.inf if nonfinite else 0.0)
        self._squares += _product(errors, errors)
        self._value_squares += _product(values, values)
        self._reference_squares += _product(references, references)
        self._products += _product(values, references)
        self._outside += (int((excess > 1).sum()) if largest > 1 else 0) + nonfinite
        self._nonfinite += nonfinite

    def difference(self, elements: int) -> Difference:
        if self._nonfinite:
            relative = math.inf
        elif self._reference_squares:
            relative = math.sqrt(self._squares / self._reference_squares)
        else:
            relative = math.inf if self._squares else 0.0
        norms = math.sqrt(self._value_squares) * math.sqrt(self._reference_squares)
        cosine = min(1.0, max(-1.0, self._products / norms)) if norms else None
        sqnr = 20 * math.log10(1 / relative) if 0 < relative < math.inf else None
        return Difference(
            self._absolute, relative, cosine, self._excess, elements, self._outside, self._nonfinite, sqnr=sqnr
        )


def _product(one: np.ndarray, other: np.ndarray) -> float:
    # Not `numpy.dot`: synchronizing its threads takes longer than multiplying a chunk.
    return float(np.einsum("i,i->", one, other))


def _shape_text(array: np.ndarray) -> str:
    return "x".join(map(str, array.shape)) or "scalar"


class OutputPair(NamedTuple):
    """An output of a call, its reference, and the types they were computed with."""

    value: np.ndarray
    reference: np.ndarray
    types: tuple[str, ...]


def is_permuted(pairs: Sequence[OutputPair], tolerance: Tolerance) -> bool:
    """Whether one permutation of an axis turns all values into their references, within tolerance.

    The pairs are outputs of one call and share the permutation: rows stay rows, and an index keeps its weight. Each
    position of the preceding axes has a permutation of its own.
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


def precisions_of(nodes: Iterable[ir.Node]) -> frozenset[str]:
    """The types of the floats that these nodes compute with, and the widths of integers that represent floats."""
    return frozenset(name for node in nodes for name in _of_node(node))


def _of_node(node: ir.Node) -> Iterator[str]:
    inputs = [value for value in node.inputs if value is not None]
    has_floats = any(value.dtype in _FLOATS for value in inputs)
    for value in (*inputs, *node.outputs):
        if value.dtype in _FLOATS:
            yield _FLOATS[value.dtype]
        elif value.dtype in _INTEGERS and (value.is_initializer() or (has_floats and value.producer() is node)):
            # A small integer is a quantized float if it is a weight, or computed from floats: not if it is a pixel.
            yield _INTEGERS[value.dtype]
    for _, subgraph in subgraphs_of(node):
        for inner in subgraph:
            yield from _of_node(inner)
