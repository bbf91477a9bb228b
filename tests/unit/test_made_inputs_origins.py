"""Which argument is to blame for what failed is found through the operations and lines of code between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from modelexport.sources.made_inputs import make_inputs
from modelexport.sources.made_inputs_origins import Origins
from modelexport.sources.made_inputs_trial import Failure, try_call


def shapes(model: nn.Module) -> dict[str, Any]:
    inputs = make_inputs(model.eval())
    assert isinstance(inputs, dict)
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def failure_of(model: nn.Module, **inputs: Any) -> Failure:
    failure = try_call(model, (), inputs)
    assert failure is not None
    return failure


class Joined(nn.Module):
    """Mixes two arguments, then fails on one of them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 8)
        self.right = nn.Linear(5, 8)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.left(a) + self.right((b * 2).flatten(1))


def test_operands_of_what_failed_know_the_arguments_they_are_made_of() -> None:
    failure = failure_of(Joined(), a=torch.ones(2, 4), b=torch.ones(2, 3, 2))
    assert [(operand.shape, operand.origins) for operand in failure.operands[:2]] == [((2, 6), ("b",)), ((8, 5), ())]
    assert failure.suspects == ("b",)


def test_what_gave_a_tensor_its_size_comes_first() -> None:
    origins = Origins({"small": (small := torch.ones(2, 1)), "large": (large := torch.ones(2, 6))})
    with origins:
        mixed = small * large
    assert origins.of(mixed) == ("large", "small")
    assert origins.of(torch.ones(1)) == ()


def test_tensors_in_lists_and_mappings_are_followed() -> None:
    inside, listed = torch.ones(2), torch.ones(3)
    origins = Origins({"pair": {"left": inside}, "rows": [listed]})
    assert origins.of(inside) == ("pair.left",)
    assert origins.of(listed) == ("rows",)


class Guarded(nn.Module):
    """Raises an error that names nothing, under a condition over several lines that does."""

    def forward(self, query: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if (
            # Any number of axes but five.
            other.dim() != 5
        ):
            raise ValueError("that will not do")
        return query


def test_condition_of_a_raised_error_tells_the_argument() -> None:
    failure = failure_of(Guarded(), query=torch.ones(1), other=torch.ones(1))
    assert failure.suspects == ("other",)
    assert "other" in failure.names
    assert "query" not in failure.names


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


def test_axes_are_added_to_the_argument_that_lacks_them() -> None:
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


def test_channels_are_told_by_the_width_of_a_patch() -> None:
    assert shapes(Patches()) == {"hidden_states": (2, 6, 16, 16)}


class Wrapped(nn.Module):
    """A convolution by the function, whose weights alone tell how many axes it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 1, 2, 2))

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv3d(sample, self.weight)


def test_rank_is_told_by_the_weights_of_the_operation() -> None:
    shape = shapes(Wrapped())["sample"]
    assert len(shape) == 5
    assert shape[1] == 3


class Places(nn.Module):
    """Wants places with a number for each direction, which its configuration has a list for."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"axes_dims": [4, 2, 2]}
        self.layer = nn.Linear(8, 8)

    def forward(self, hidden_states: torch.Tensor, img_ids: torch.Tensor | None = None) -> torch.Tensor:
        turned = [img_ids[:, axis, None].expand(-1, size) for axis, size in enumerate(self.config["axes_dims"])]
        if img_ids.shape[1] != len(turned):
            raise ValueError("too many directions")
        return self.layer(hidden_states) * torch.cat(turned, -1)


def test_places_have_a_number_for_each_direction() -> None:
    assert shapes(Places()) == {"hidden_states": (2, 7, 8), "img_ids": (7, 3)}


class Said(nn.Module):
    """Says what shape it wants, in names and numbers."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        if position_ids.dim() != 3 or position_ids.shape[-1] != 3:
            raise ValueError(f"`position_ids` must have shape (B, L, 3), got {tuple(position_ids.shape)}.")
        return position_ids.float()


def test_shape_that_the_error_asks_for_is_taken() -> None:
    assert shapes(Said()) == {"position_ids": (2, 7, 3)}


class Masked(nn.Module):
    """Takes a mask that only truth will do for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask[..., None], self.layer(states), 0.0)


def test_type_that_the_error_asks_for_is_taken() -> None:
    inputs = make_inputs(Masked())
    assert isinstance(inputs, dict)
    assert inputs["mask"].dtype is torch.bool


class Listed(nn.Module):
    """Takes lists: of tensors without a batch, of sizes, and numbers that its signature does not require."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(
        self,
        rows: list[torch.Tensor],
        sizes: list[tuple[int, int, int]] | None = None,
        width: int | None = None,
        fast: bool = False,
    ) -> torch.Tensor:
        states = torch.stack([self.layer(row) for row in rows])
        return states.reshape(len(sizes), -1, width * 5)


def test_lists_and_numbers_are_made_by_their_annotations() -> None:
    inputs = make_inputs(Listed())
    assert isinstance(inputs, dict)
    assert sorted(inputs) == ["rows", "sizes", "width"]
    assert [row.dim() for row in inputs["rows"]] == [1, 1]
    assert inputs["sizes"] == [(1, 1, 7)] * 2
    assert inputs["width"] == 1
