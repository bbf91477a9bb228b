"""Each repair finds the inputs of a model that fails in its way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from modelexport.sources.inputs.synthesis import make_example_inputs
from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.repairs import repairs
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, TensorSpec, create_arguments
from modelexport.sources.inputs.synthesis.trial_call import Attempt, Failure, try_call


def shapes(model: nn.Module) -> dict[str, Any]:
    inputs = make_example_inputs(model.eval())
    assert isinstance(inputs, dict)
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def failure_of(model: nn.Module, **inputs: Any) -> Failure:
    failure = try_call(model, (), inputs)
    assert failure is not None
    return failure


class Video(nn.Module):
    """Takes the axes of one argument apart, where the other is just as good by its name."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.conv = nn.Conv3d(4, 8, 1)
        self.text = nn.Linear(6, 8)

    def forward(self, text_states: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        text = self.text(text_states).mean(1)
        if self.order == "frames first":
            batch, frames, channels, height, width = hidden_states.shape
            hidden_states = hidden_states.transpose(1, 2).reshape(batch, channels, frames, height, width)
        else:
            hidden_states = hidden_states.permute(0, 1, 2, 4, 3)
        return self.conv(hidden_states).mean((2, 3, 4)) + text


def test_rank_is_changed_of_the_argument_that_the_code_unpacks() -> None:
    assert shapes(Video("frames first")) == {"text_states": (2, 7, 6), "hidden_states": (2, 5, 4, 16, 16)}
    assert shapes(Video("permuted")) == {"text_states": (2, 7, 6), "hidden_states": (2, 4, 5, 16, 16)}


class Patches(nn.Module):
    """A width that is the channels of an argument times the pixels of a patch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6 * 2 * 2, 8)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch, depth, height, width = hidden_states.shape
        cut = hidden_states.reshape(batch, depth, height // 2, 2, width // 2, 2)
        return self.embed(cut.permute(0, 2, 4, 1, 3, 5).flatten(3))


def test_channels_are_scaled_until_the_operands_match() -> None:
    assert shapes(Patches()) == {"hidden_states": (2, 6, 16, 16)}


class Wrapped(nn.Module):
    """A convolution by the function, whose weights alone tell how many axes it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 1, 2, 2))

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv3d(sample, self.weight)


def test_rank_is_taken_from_the_weights_of_the_operation() -> None:
    shape = shapes(Wrapped())["sample"]
    assert len(shape) == 5
    assert shape[1] == 3


class Said(nn.Module):
    """Says what shape it wants, in names and numbers."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        if position_ids.dim() != 3 or position_ids.shape[-1] != 3:
            raise ValueError(f"`position_ids` must have shape (B, L, 3), got {tuple(position_ids.shape)}.")
        return position_ids.float()


def test_shape_is_taken_from_the_message() -> None:
    assert shapes(Said()) == {"position_ids": (2, 7, 3)}


class SaidInWords(nn.Module):
    """Has a word for the length that it wants first."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        if position_ids.shape != (7, 4):
            raise ValueError("`position_ids` must be a `(seq_len, 4)` tensor")
        return position_ids.float()


def test_name_in_the_shape_of_a_message_stands_for_a_usual_size() -> None:
    assert shapes(SaidInWords()) == {"position_ids": (7, 4)}


class SaidForImages(nn.Module):
    """Wants two pictures at a time, and has words for the sizes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"num_channels": 4, "image_size": 32}

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        if pixel_values.dim() != 5 or pixel_values.shape[1] != 2:
            raise ValueError("it takes a tensor of shape (batch_size, 2, num_channels, height, width)")
        return pixel_values * 2


def test_names_of_image_axes_in_a_message_stand_for_channels_and_sides() -> None:
    assert shapes(SaidForImages()) == {"pixel_values": (2, 2, 4, 32, 32)}


class Summed(nn.Module):
    """A width that is that of one argument and a multiple of another: no number in the error is one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.layer = nn.Linear(64 + 3 * 16, 8)

    def forward(self, pooled: torch.Tensor, conditions: torch.Tensor) -> torch.Tensor:
        turned = conditions[..., None].expand(-1, -1, 16).flatten(1)
        return self.layer(torch.cat([self.first(pooled), turned], 1))


def test_size_is_extrapolated_from_two_calls_that_failed_at_one_place() -> None:
    assert shapes(Summed()) == {"pooled": (2, 64), "conditions": (2, 3)}


class Skipping(nn.Module):
    """A convolution that gets nothing, from an argument that the signature does not require."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv3d(5, 4, 1)

    def forward(self, sample: torch.Tensor, pose: torch.Tensor | None = None) -> torch.Tensor:
        return self.first(sample).mean((2, 3)) + self.second(pose).mean((2, 3, 4))


def test_missing_input_of_a_convolution_gets_its_channels_and_rank() -> None:
    assert shapes(Skipping())["pose"] == (2, 5, 16, 16, 16)


class Sized(nn.Module):
    """Takes many numbers that its signature does not require, and fails on one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(
        self,
        states: torch.Tensor,
        frames: int | None = None,
        height: int | None = None,
        width: int | None = None,
        depth: int | None = None,
        scale: torch.Tensor | None = None,
        shift: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.layer(states) + self.places(frames, height, width, depth)

    def places(self, *sizes: int) -> torch.Tensor:
        return sum(torch.arange(end=size, start=0).sum() for size in sizes)


def test_arguments_that_the_failed_line_names_are_added_one_after_the_other() -> None:
    assert sorted(shapes(Sized())) == ["depth", "frames", "height", "states", "width"]


class Corners(nn.Module):
    """Joins three arguments of one width, which have to be of another width together."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"hidden_size": 16}
        self.layer = nn.Linear(3 * 2 * 8, 4)

    def forward(self, original: torch.Tensor, target: torch.Tensor, crop: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([original, target, crop], 1)
        return self.layer(joined[..., None].expand(-1, -1, 8).flatten(1))


def test_concatenated_arguments_of_one_shape_are_resized_together() -> None:
    model = Corners()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    assert sum(shape[1] for shape in shapes(model).values()) == 6
    assert len(calls) < 12


class Spread(nn.Module):
    """Expands an argument to one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, sample: torch.Tensor, fps: torch.Tensor) -> torch.Tensor:
        return self.layer(sample).mean((1, 2, 3)) + fps.expand(sample.shape[0])


def test_rank_is_taken_from_the_shape_that_an_argument_is_expanded_to() -> None:
    assert len(shapes(Spread())["fps"]) == 1


class Pooled(nn.Module):
    """Takes a sequence where one row would do, and fails in a way that does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        mapped = self.layer(pooled)
        if not mapped.stride()[:-2]:
            raise ValueError("not like this")
        return mapped


def test_row_of_floats_becomes_a_sequence() -> None:
    assert shapes(Pooled()) == {"pooled": (2, 7, 8)}


class Scaled(nn.Module):
    """Accepts few numbers, and names them in its message."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor, scale: int) -> torch.Tensor:
        if scale not in (3, 6):
            raise ValueError(f"no upscaler for scale {scale}; there are: [3, 6]")
        return self.layer(states) * scale


def test_number_is_taken_from_the_message() -> None:
    assert shapes(Scaled())["scale"] == 3


class Dropping(nn.Module):
    """Indexes with an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
        states = self.layer(states)
        states[drop] *= 2
        return states


def test_index_is_not_floating_point() -> None:
    inputs = make_example_inputs(Dropping())
    assert isinstance(inputs, dict)
    assert not inputs["drop"].is_floating_point()


class Indexed(nn.Module):
    """Indexes more axes than the guess has."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return sample[:, :, 0, 0, 0] * 2


def test_rank_is_taken_from_the_number_of_indices() -> None:
    assert len(shapes(Indexed())["sample"]) == 5


class Blocks(nn.Module):
    """Divides images into blocks, and says nothing of small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] < 200:
            raise AssertionError
        return self.conv(x)


def test_image_is_enlarged_where_a_small_one_fails() -> None:
    assert shapes(Blocks()) == {"x": (2, 3, 256, 256)}


class Grumbling(nn.Module):
    """Finds something wrong with whatever it is given."""

    def __init__(self, complaint: Exception) -> None:
        super().__init__()
        self.complaint = complaint

    def forward(self, states: torch.Tensor, timestep: torch.Tensor, position_ids: torch.Tensor, n: int) -> torch.Tensor:
        if states.dim() + timestep.dim() + position_ids.dim() < 99 * n:
            raise self.complaint
        return states


@pytest.mark.parametrize(
    "complaint",
    [
        ValueError("not enough values to unpack (expected 3, got 0)"),
        ValueError("not enough values to unpack (expected 5, got 2)"),
        ValueError("it takes (B, L, 3) or (batch, 2, channels, height, width), not (7, 2)"),
        ValueError("it has to be 0-d, or 1-d, or 9D"),
        RuntimeError("shape '[-1, 0]' is invalid for input of size 14"),
        RuntimeError("shape '[-1, 1536]' is invalid for input of size 0"),
        IndexError("index 1 is out of bounds for dimension 0 with size 1"),
        IndexError("tensors used as indices must be long, int, byte or bool tensors"),
        IndexError("Dimension out of range (expected to be in range of [-1, 0], but got 2)"),
        RuntimeError("Tensors must have same number of dimensions: got 3 and 4, the image is too small"),
        TypeError("'NoneType' object is not subscriptable, it must be a mapping"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_proposals_of_repairs_can_be_created_whatever_the_message_says(complaint: Exception) -> None:
    model = Grumbling(complaint)
    proposal: dict[str, Any] = {
        "states": TensorSpec((2, 3, 8, 8)),
        "timestep": TensorSpec((), Kind.ONES),
        "position_ids": TensorSpec((), Kind.POSITIONS),
        "n": 1,
    }
    failure = failure_of(model, **create_arguments(proposal, torch.float32, frozenset()))
    assert set(failure.suspects) == {"states", "timestep", "position_ids"}
    attempt = Attempt(ModelFacts.read(model), proposal, failure)
    for _, _, changed in repairs(dataclasses.replace(attempt, earlier=[attempt])):
        if all(value.is_bounded for value in changed.values() if isinstance(value, TensorSpec)):
            create_arguments(changed, torch.float32, frozenset())


def test_diffusers_model_that_takes_videos_accepts_synthesized_inputs() -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        ffn_dim=16,
        num_layers=1,
    )
    found = shapes(model)
    assert len(found["hidden_states"]) == 5
    assert found["hidden_states"][1] == 4
    assert found["encoder_hidden_states"][-1] == 8
