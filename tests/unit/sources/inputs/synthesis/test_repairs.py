"""Which argument is to blame for what failed is found through the operations and lines of code between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modelexport.sources.inputs.synthesis.model_facts import ModelFacts
from modelexport.sources.inputs.synthesis.provenance import Origins
from modelexport.sources.inputs.synthesis.repairs import repairs
from modelexport.sources.inputs.synthesis.search import make_inputs
from modelexport.sources.inputs.synthesis.tensor_spec import Kind, TensorSpec, make_tensors
from modelexport.sources.inputs.synthesis.trial_call import Failure, try_call


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


class SaidInWords(nn.Module):
    """Has a word for the length that it wants first."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        if position_ids.shape != (7, 4):
            raise ValueError("`position_ids` must be a `(seq_len, 4)` tensor")
        return position_ids.float()


def test_words_of_a_shape_are_sizes_that_are_usual() -> None:
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


def test_words_for_images_are_their_channels_and_sides() -> None:
    assert shapes(SaidForImages()) == {"pixel_values": (2, 2, 4, 32, 32)}


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


class Summed(nn.Module):
    """A width that is that of one argument and a multiple of another: no number in the error is one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.layer = nn.Linear(64 + 3 * 16, 8)

    def forward(self, pooled: torch.Tensor, conditions: torch.Tensor) -> torch.Tensor:
        turned = conditions[..., None].expand(-1, -1, 16).flatten(1)
        return self.layer(torch.cat([self.first(pooled), turned], 1))


def test_size_is_told_by_what_becomes_of_another() -> None:
    assert shapes(Summed()) == {"pooled": (2, 64), "conditions": (2, 3)}


class Skipping(nn.Module):
    """A convolution that gets nothing, from an argument that the signature does not require."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv3d(5, 4, 1)

    def forward(self, sample: torch.Tensor, pose: torch.Tensor | None = None) -> torch.Tensor:
        return self.first(sample).mean((2, 3)) + self.second(pose).mean((2, 3, 4))


def test_convolution_that_gets_nothing_tells_what_it_takes() -> None:
    assert shapes(Skipping())["pose"] == (2, 5, 16, 16, 16)


class WithOptions(nn.Module):
    """Hands on options that it takes for given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor, options: dict[str, Any] | None = None) -> torch.Tensor:
        return self.turned(self.layer(states), **options)

    def turned(self, states: torch.Tensor, by: int = 1) -> torch.Tensor:
        return states * by


def test_options_are_empty_where_they_have_to_be_a_mapping() -> None:
    assert shapes(WithOptions())["options"] == {}


class Demanding(nn.Module):
    """Says that the one of its arguments is too small, without a number that would help."""

    def forward(self, text: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        if image.shape[-1] < 200:
            raise ValueError("the image is too small for its patches")
        return text.sum() + image


def test_argument_that_is_too_small_grows() -> None:
    found = shapes(Demanding())
    assert found["image"] == (2, 3, 256, 256)


class PackedPatches(nn.Module):
    """Images as lists of patches, with a mask for those that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"patch_size": 2, "num_channels": 3}
        self.layer = nn.Linear(12, 4)

    def forward(
        self, pixel_values: torch.Tensor, pixel_attention_mask: torch.Tensor, spatial_shapes: torch.LongTensor
    ) -> torch.Tensor:
        return self.layer(pixel_values).sum() * pixel_attention_mask.sum() * spatial_shapes.sum()


def test_mask_of_patches_has_a_place_for_each() -> None:
    found = shapes(PackedPatches())
    assert found["pixel_attention_mask"] == found["pixel_values"][:2] == (2, 16)


class Chosen(nn.Module):
    """Takes numbers of things it has few of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kinds = nn.Parameter(torch.randn(3, 4))

    def forward(self, states: torch.Tensor, which: list[int]) -> torch.Tensor:
        return self.layer(states) + sum(self.kinds[kind] for kind in which)


def test_list_of_numbers_may_be_one_of_places() -> None:
    assert shapes(Chosen())["which"] == [0, 1]


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


def test_all_that_is_missing_in_a_line_is_given_at_once() -> None:
    model = Sized()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    assert sorted(shapes(model)) == ["depth", "frames", "height", "states", "width"]
    assert len(calls) < 10


class Corners(nn.Module):
    """Joins three arguments of one width, which have to be of another width together."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"hidden_size": 16}
        self.layer = nn.Linear(3 * 2 * 8, 4)

    def forward(self, original: torch.Tensor, target: torch.Tensor, crop: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([original, target, crop], 1)
        return self.layer(joined[..., None].expand(-1, -1, 8).flatten(1))


def test_arguments_of_one_shape_change_together() -> None:
    model = Corners()
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    assert sum(shape[1] for shape in shapes(model).values()) == 6
    assert len(calls) < 12


class Spread(nn.Module):
    """Spreads an argument over one axis, that has more of them by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, sample: torch.Tensor, fps: torch.Tensor) -> torch.Tensor:
        return self.layer(sample).mean((1, 2, 3)) + fps.expand(sample.shape[0])


def test_rank_is_told_by_what_an_argument_is_spread_over() -> None:
    assert len(shapes(Spread())["fps"]) == 1


class Scaled(nn.Module):
    """Takes a number of which few are known, and says which."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor, scale: int) -> torch.Tensor:
        if scale not in (3, 6):
            raise ValueError(f"no way for scale {scale}; there are: [3, 6]")
        return self.layer(states) * scale


def test_number_that_the_error_offers_is_taken() -> None:
    assert shapes(Scaled())["scale"] == 3


class Dropping(nn.Module):
    """Takes something by which tokens are picked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, states: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
        states = self.layer(states)
        states[drop] *= 2
        return states


def test_indices_are_no_floating_point_numbers() -> None:
    inputs = make_inputs(Dropping())
    assert isinstance(inputs, dict)
    assert not inputs["drop"].is_floating_point()


class LaidOut(nn.Module):
    """Makes several numbers of each, and lays them out in rows of a length that is theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 6 * 8)

    def forward(self, pooled: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
        turned = meta.reshape(-1)[:, None].expand(-1, 8)
        return self.first(pooled) * turned.reshape(-1, 6 * 8)


def test_numbers_fit_the_shape_they_are_laid_out_in() -> None:
    assert shapes(LaidOut()) == {"pooled": (2, 16), "meta": (2, 6)}


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
def test_whatever_is_said_what_to_try_next_can_be_made(complaint: Exception) -> None:
    model = Grumbling(complaint)
    proposal: dict[str, Any] = {
        "states": TensorSpec((2, 3, 8, 8)),
        "timestep": TensorSpec((), Kind.ONES),
        "position_ids": TensorSpec((), Kind.POSITIONS),
        "n": 1,
    }
    failure = failure_of(model, **make_tensors(proposal, torch.float32, frozenset()))
    assert set(failure.suspects) == {"states", "timestep", "position_ids"}
    for _, changed in repairs(ModelFacts.read(model), proposal, failure, [(proposal, failure)]):
        if all(value.is_bounded for value in changed.values() if isinstance(value, TensorSpec)):
            make_tensors(changed, torch.float32, frozenset())


class Turned(nn.Module):
    """Takes a number for each direction, where one for each place would be usual."""

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        places = position_ids[:, :, None] if position_ids.dim() == 2 else position_ids
        return places[:, :, 0] * 2 + places[:, :, 1]


def test_axis_that_the_code_asks_for_is_added() -> None:
    assert shapes(Turned()) == {"position_ids": (2, 7, 2)}


def test_model_of_diffusers_that_takes_videos_runs_on_what_is_made_up() -> None:
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
