"""Permuted outputs: one permutation of rows for all outputs of a call."""

from __future__ import annotations

import numpy as np
import pytest

from modelexport.verification.difference import OutputPair, Tolerance, is_permuted

TOLERANCE = Tolerance(1e-3, 1e-5)
WEIGHTS = np.array([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], np.float32)
INDICES = np.array([[2, 0, 1], [1, 2, 0]])
# Another order in each row.
ORDER = np.array([[1, 0, 2], [2, 0, 1]])


def same(*pairs: tuple[np.ndarray, np.ndarray]) -> bool:
    return is_permuted([OutputPair(one, other, (str(one.dtype),)) for one, other in pairs], TOLERANCE)


def moved(array: np.ndarray, order: np.ndarray = ORDER) -> np.ndarray:
    return np.take_along_axis(array, order, axis=1)


def test_outputs_permuted_together_are_permuted() -> None:
    assert same((moved(WEIGHTS) * np.float32(1 + 1e-6), WEIGHTS), (moved(INDICES), INDICES))


def test_outputs_with_different_permutations_are_not_permuted() -> None:
    assert not same((moved(WEIGHTS), WEIGHTS), (moved(INDICES, ORDER[::-1]), INDICES))


def test_rows_are_permuted_as_a_whole() -> None:
    rows = np.random.default_rng(0).normal(size=(8, 5))
    order = np.random.default_rng(1).permutation(8)
    assert same((rows[order], rows), (order, np.arange(8)))
    assert not same((rows[order][:, ::-1], rows))


def test_elements_do_not_move_between_positions_of_preceding_axes() -> None:
    assert not same((INDICES[::-1], INDICES + 10 * np.arange(2)[:, None]))


def test_other_values_are_not_a_permutation() -> None:
    assert not same((moved(WEIGHTS) + np.float32(0.01), WEIGHTS))
    assert not same((moved(INDICES) + 1, INDICES))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_permuted_too(odd: float) -> None:
    assert same((np.array([1.0, odd, 2.0]), np.array([odd, 2.0, 1.0])))
    assert not same((np.array([1.0, odd, 2.0]), np.array([7.0, 2.0, 1.0])))


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((), ()), ((0,), (0,))])
def test_other_shapes_scalars_and_empty_tensors_are_not_permuted(shapes: tuple[tuple[int, ...], ...]) -> None:
    assert not same((np.zeros(shapes[0]), np.ones(shapes[1])))


def test_outputs_are_permuted_only_along_a_common_axis() -> None:
    assert not same((moved(INDICES), INDICES), (np.arange(5)[::-1], np.arange(5)))


def test_permuted_outputs_of_coarse_types_have_the_tolerance_of_their_type() -> None:
    one, other = np.array([1.0, 2.0], np.float32), np.array([2.05, 1.0], np.float32)
    assert not is_permuted([OutputPair(one, other, ("float32",))], Tolerance())
    assert is_permuted([OutputPair(one, other, ("bfloat16",))], Tolerance())
