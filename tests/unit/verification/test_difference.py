"""The difference of two arrays, and when it is out of tolerance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.verification import difference
from modelexport.verification.difference import Tolerance, compare

DEFAULT = Tolerance()


def array(*numbers: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(numbers, dtype=dtype)


def test_errors_of_a_known_pair() -> None:
    found = compare(array(3, 4.4), array(3, 4), Tolerance(rtol=0.0, atol=0.1))
    assert found.absolute == pytest.approx(0.4, rel=1e-5)
    assert found.relative == pytest.approx(0.4 / 5, rel=1e-5)
    assert found.cosine == pytest.approx((9 + 17.6) / (5 * math.hypot(3, 4.4)), rel=1e-6)
    assert found.excess == pytest.approx(4, rel=1e-5)
    assert (found.elements, found.outside, found.nonfinite) == (2, 1, 0)
    assert found.is_out


@pytest.mark.parametrize(
    ("value", "is_out"),
    [(1.0 + 1e-3, False), (1.0 + 1.1e-3, True), (1.0, False)],
)
def test_default_tolerance_is_that_of_allclose(value: float, is_out: bool) -> None:
    one, other = array(value, dtype=np.float64), array(1.0, dtype=np.float64)
    assert compare(one, other, DEFAULT).is_out == is_out
    assert np.allclose(one, other, rtol=1e-3, atol=1e-5) != is_out


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1, 1)), min_size=1, max_size=20),
    st.floats(0, 1e-2),
    st.floats(1e-9, 1e-2),
)
def test_array_is_out_of_tolerance_exactly_if_allclose_is_false(
    pairs: list[tuple[float, float]], rtol: float, atol: float
) -> None:
    reference = np.array([number for number, _ in pairs])
    value = reference + np.array([delta for _, delta in pairs]) * atol
    expected = bool((np.abs(value - reference) <= atol + rtol * np.abs(reference)).all())
    found = compare(value, reference, Tolerance(rtol, atol))
    # At the very edge the quotient may round to one.
    assert found.is_out != expected or found.excess == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_integers_must_be_equal(dtype: type) -> None:
    ones, twos = array(1, 100, dtype=dtype), array(1, 101, dtype=dtype)
    assert not compare(ones, ones, DEFAULT).is_out
    found = compare(ones, twos, Tolerance(rtol=10.0, atol=10.0))
    assert found.is_out
    assert (found.absolute, found.outside) == (1, 1)


def test_large_integers_are_different_though_they_are_equal_as_floats() -> None:
    one = np.array([2**60], np.int64)
    found = compare(one + 1, one, DEFAULT)
    assert found.is_out
    assert found.absolute == 1


def test_booleans_must_be_equal() -> None:
    yes, no = np.array([True, True]), np.array([True, False])
    assert not compare(yes, yes, DEFAULT).is_out
    assert compare(yes, no, DEFAULT).outside == 1


def test_nan_and_infinity_are_equal_if_both_arrays_have_them() -> None:
    odd = array(np.nan, np.inf, -np.inf, 1)
    found = compare(odd, odd, DEFAULT)
    assert not found.is_out
    assert (found.absolute, found.relative, found.cosine, found.nonfinite) == (0, 0, 1, 0)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nan_or_infinity_in_one_array_is_out_of_tolerance(odd: float) -> None:
    for pair in ((array(odd, 1), array(2, 1)), (array(2, 1), array(odd, 1)), (array(np.inf), array(-np.inf))):
        found = compare(*pair, Tolerance(rtol=1e9, atol=1e9))
        assert found.is_out
        assert found.absolute == found.relative == found.excess == math.inf
        assert (found.nonfinite, found.outside) == (1, 1)


def test_scalars_and_empty_tensors_are_compared() -> None:
    assert compare(np.float32(2.0).reshape(()), np.float32(3.0).reshape(()), DEFAULT).absolute == 1
    empty = compare(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), DEFAULT)
    assert not empty.is_out
    assert (empty.elements, empty.absolute, empty.cosine) == (0, 0, None)


def test_another_shape_is_out_of_tolerance_and_named() -> None:
    found = compare(np.zeros((2, 3)), np.zeros((3, 2)), DEFAULT)
    assert found.is_out
    assert found.problem == "its shape is 2x3 instead of 3x2"


def test_zero_reference_has_no_cosine_and_an_infinite_relative_error() -> None:
    zero = array(0, 0)
    assert compare(zero, zero, DEFAULT).relative == 0
    assert compare(zero, zero, DEFAULT).cosine is None
    assert compare(array(1e-9, 0), zero, DEFAULT).relative == math.inf
    assert not compare(array(1e-9, 0), zero, DEFAULT).is_out
    assert compare(array(1e-9, 0), zero, Tolerance(0.0, 0.0)).excess == math.inf
    assert not compare(zero, zero, Tolerance(0.0, 0.0)).is_out


def test_default_tolerance_depends_on_the_type_and_a_given_one_does_not() -> None:
    assert DEFAULT.limits("float32", "float64") == (1e-3, 1e-5)
    assert DEFAULT.limits("float32", "float16") == (8 * 2.0**-10, 2.0**-10)
    assert DEFAULT.limits("bfloat16") == (8 * 2.0**-7, 2.0**-7)
    assert Tolerance(rtol=1e-6).limits("bfloat16") == (1e-6, 2.0**-7)
    close = array(1.004), array(1.0)
    assert compare(*close, DEFAULT).is_out
    assert not compare(*close, DEFAULT, "float16").is_out


def test_comparison_in_chunks_equals_comparison_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    reference = random.normal(size=(7, 11)).astype(np.float32)
    value = reference + random.normal(0, 1e-3, reference.shape).astype(np.float32)
    whole = compare(value, reference, DEFAULT)
    monkeypatch.setattr(difference, "_CHUNK", 10)
    pieces = compare(value, reference, DEFAULT)
    assert (pieces.absolute, pieces.excess, pieces.outside) == (whole.absolute, whole.excess, whole.outside)
    assert pieces.relative == pytest.approx(whole.relative)
    assert pieces.cosine == pytest.approx(whole.cosine)
