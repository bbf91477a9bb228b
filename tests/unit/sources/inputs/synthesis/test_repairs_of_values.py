"""Repairs of what an argument contains, and of options; and what a failed call leaves behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from modelexport.errors import InputError
from modelexport.sources.inputs.synthesis import make_example_inputs
from modelexport.sources.inputs.synthesis.trial_call import try_call


def inputs_of(model: nn.Module) -> dict[str, Any]:
    inputs = make_example_inputs(model.eval())
    assert isinstance(inputs, dict)
    return inputs


class Choosing(nn.Module):
    """Takes bools, and does not say so."""

    def forward(self, states: torch.Tensor, states_mask: torch.Tensor) -> torch.Tensor:
        return torch.where(states_mask[..., None], states, 0.0)


class Counting(nn.Module):
    """Takes numbers of classes under a name that says nothing."""

    def forward(self, classes: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(classes, 1 << 13).float()


class Centred(nn.Module):
    """Takes coordinates under a name that stands for whole numbers."""

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        return lengths.mean(-1)


@pytest.mark.parametrize(
    ("model", "name", "dtype"),
    [
        (Choosing(), "states_mask", torch.bool),
        (Counting(), "classes", torch.int64),
        (Centred(), "lengths", torch.float32),
    ],
)
def test_operation_gets_the_kind_of_values_that_it_asks_for(model: nn.Module, name: str, dtype: torch.dtype) -> None:
    assert inputs_of(model)[name].dtype == dtype


class Cached(nn.Module):
    """Fails unless an option is switched off that no message refers to."""

    def forward(self, states: torch.Tensor, keep: bool | None = None) -> torch.Tensor:
        if keep is not False:
            raise ValueError("there is nowhere to put it")
        return states


def test_option_is_switched_off_where_nothing_else_helps() -> None:
    assert inputs_of(Cached())["keep"] is False


class Boxes(nn.Module):
    """Needs boxes, whose annotation is wrong."""

    def forward(self, states: torch.Tensor, bbox: dict[str, Any] | None = None) -> torch.Tensor:
        if bbox is None:
            raise ValueError("bbox is required")
        return states.sum() + bbox.sum()


def test_box_is_a_tensor_whatever_its_annotation_says() -> None:
    assert isinstance(inputs_of(Boxes())["bbox"], torch.Tensor)


class Nothing(nn.Module):
    """Adds a tensor without elements to one that has some."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states[:, :0] + torch.ones(1, 5, 1)


def test_size_of_zero_in_a_message_divides_nothing() -> None:
    with pytest.raises(InputError, match="size of tensor a"):
        make_example_inputs(Nothing())


MADE: list[weakref.ref[torch.Tensor]] = []


class Wasteful(nn.Module):
    """Fails in an operation, with a tensor in a variable."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        large = states + 1
        MADE.append(weakref.ref(large))
        return large @ torch.ones(3, 3)


def test_failed_call_leaves_no_tensors_behind() -> None:
    gc.disable()
    try:
        assert try_call(Wasteful(), (), {"states": torch.ones(2, 7)}) is not None
        assert MADE[-1]() is None
    finally:
        gc.enable()
