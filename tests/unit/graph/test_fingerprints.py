"""Fingerprints recognize a tensor, and distinguish it from others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modelexport.capture.by_value.eager_recording import take_torch_fingerprint
from modelexport.graph import fingerprints
from modelexport.graph.fingerprints import Fingerprint, ValueIndex


def taken(tensor: torch.Tensor) -> Fingerprint:
    found = take_torch_fingerprint(tensor)
    assert found is not None
    return found


# --- fingerprints ----------------------------------------------------------------------------------------------


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 999), data=st.data())
@settings(max_examples=60, deadline=None)
def test_tensor_is_known_again_in_any_layout(shape: list[int], seed: int, data: st.DataObject) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    axes = data.draw(st.permutations(range(len(shape))))
    other = tensor.permute(axes).contiguous()
    assert taken(tensor).same_values(taken(other))
    assert taken(tensor).is_copy(taken(other))
    assert taken(tensor).same_values(taken(tensor.reshape(-1)))
    assert taken(tensor).same_layout(taken(other)) == (other.shape == tensor.shape and torch.equal(other, tensor))


def test_layouts_with_the_same_shape_are_distinguished() -> None:
    tensor = torch.randn(9, 9)
    assert not taken(tensor).same_layout(taken(tensor.T))
    assert not taken(tensor).same_layout(taken(tensor.reshape(3, 27)))


def test_fingerprint_of_a_view_equals_the_one_taken_from_the_whole() -> None:
    tensor = torch.randn(4, 5, 60)
    view = tensor.transpose(0, 2)
    moved, whole = take_torch_fingerprint(view, taken(tensor)), taken(view)
    assert moved is not None
    assert moved.group == whole.group
    assert moved.shape == whole.shape
    assert moved.same_layout(whole)
    np.testing.assert_allclose(moved.features, whole.features, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise", [1e-7, 1e-6, 1e-5])
def test_noise_of_another_runtime_makes_no_difference(noise: float) -> None:
    tensor = torch.randn(3, 500)
    other = tensor + noise * torch.randn(3, 500)
    assert taken(tensor).same_layout(taken(other))
    assert not taken(tensor).is_copy(taken(other))


@pytest.mark.parametrize("factor", [1.002, 0.99, -1.0])
def test_scaled_tensor_is_another(factor: float) -> None:
    tensor = torch.randn(3, 500)
    assert not taken(tensor).same_values(taken(tensor * factor))


@pytest.mark.parametrize("size", [5, 33, 4096])
def test_tensor_of_the_same_distribution_is_another(size: int) -> None:
    one, other = torch.randn(2, size)
    assert not taken(one).same_values(taken(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensor_is_known_again_in_another_precision(dtype: torch.dtype) -> None:
    tensor = torch.randn(40, 50)
    assert taken(tensor).same_layout(taken(tensor.to(dtype)))


def test_elements_of_different_kinds_are_never_equal() -> None:
    ones = torch.ones(4, 4)
    kinds = [taken(ones), taken(ones.int()), taken(ones.bool())]
    assert [one.same_values(other) for one in kinds for other in kinds].count(True) == len(kinds)
    assert taken(ones.int()).same_values(taken(ones.long()))


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min, -1e30])
def test_masked_elements_do_not_drown_the_others(masked: float) -> None:
    one, other = torch.randn(2, 200)
    one[50:], other[50:] = masked, masked
    assert taken(one).is_distinctive
    assert taken(one).same_layout(taken(one + 1e-6))
    assert not taken(one).same_values(taken(other))
    assert not taken(one).same_values(taken(torch.cat([one[:51], other[:149]])))


def test_lowest_half_stands_for_infinity_as_the_lowest_float_does() -> None:
    scores = torch.randn(8, 8)
    scores[:, 5:] = torch.finfo(torch.float32).min
    half = scores.clamp(min=torch.finfo(torch.float16).min).half()
    assert taken(scores).same_layout(taken(half))


def test_undefined_elements_count() -> None:
    one = torch.randn(50)
    other = one.clone()
    other[3] = torch.nan
    assert not taken(one).same_values(taken(other))
    assert taken(other).same_layout(taken(other.clone()))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(100),
        torch.eye(30),
        torch.ones(3, 3).triu().log(),
        torch.arange(9),
        torch.rand(50) > 0.5,
        torch.tensor(0.37),
        torch.tensor([0.1, 0.2, 0.3]),
    ],
    ids=["zeros", "two values", "mask", "whole numbers", "booleans", "scalar", "three values"],
)
def test_tensor_with_few_distinct_values_is_not_evidence(tensor: torch.Tensor) -> None:
    assert not taken(tensor).is_distinctive


def test_many_values_among_zeros_are_evidence() -> None:
    tensor = torch.zeros(100_000)
    tensor[70_000:70_010] = torch.randn(10)
    assert taken(tensor).is_distinctive


def test_what_cannot_be_read_has_no_fingerprint() -> None:
    assert take_torch_fingerprint(torch.zeros(0, 3)) is None
    assert take_torch_fingerprint(torch.eye(3).to_sparse()) is None
    assert take_torch_fingerprint(torch.empty(3, device="meta")) is None
    assert fingerprints.take_fingerprint(np.array(["text"])) is None


def test_complex_numbers_are_compared_by_their_parts() -> None:
    tensor = torch.randn(5, dtype=torch.complex64)
    assert taken(tensor).same_layout(taken(torch.view_as_real(tensor)))
    assert not taken(tensor).same_values(taken(tensor.conj()))


@pytest.mark.parametrize("size", [3, 10**6 + 3])
def test_fingerprint_costs_a_few_hundred_bytes(size: int) -> None:
    assert taken(torch.randn(size)).features.nbytes < 300


def test_large_tensor_gives_the_same_in_one_piece_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(100, 77)
    whole = taken(tensor)
    monkeypatch.setattr("modelexport.graph.fingerprints._CHUNK", 1000)
    pieces = taken(tensor)
    assert pieces.is_copy(whole)
    lowest, highest = tensor.flatten().sort().values[:6], tensor.flatten().sort().values[-6:]
    np.testing.assert_array_equal(pieces.features[5:17], torch.cat([lowest, highest]).numpy())


# --- the index -------------------------------------------------------------------------------------------------


def test_index_finds_equal_values_in_order_and_no_others() -> None:
    one, other = torch.randn(2, 6, 8)
    index = ValueIndex([taken(one), None, taken(other), taken(one.T), taken(one.reshape(48))])
    assert index.find(taken(one + 1e-7)) == [0, 3, 4]
    assert index.find(taken(torch.randn(6, 8))) == []
    assert index.find(taken(torch.randn(3))) == []


def test_index_prefers_the_closest_where_several_are_near() -> None:
    """As along a residual stream whose layers add next to nothing."""
    stream = [torch.randn(4, 64)]
    for _ in range(4):
        stream.append(stream[-1] + 2e-5 * torch.randn(4, 64))
    index = ValueIndex([taken(tensor) for tensor in stream])
    assert [index.find(taken(tensor + 1e-8)) for tensor in stream] == [[0], [1], [2], [3], [4]]
