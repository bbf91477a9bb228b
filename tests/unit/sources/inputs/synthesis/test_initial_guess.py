"""The first guess of an argument, where its name, its annotation or the configuration tells what it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from modelexport.sources.inputs.synthesis import make_example_inputs, synthesize_inputs


def shapes(model: nn.Module) -> dict[str, Any]:
    inputs = make_example_inputs(model.eval())
    assert isinstance(inputs, dict)
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


class Coordinates(nn.Module):
    """Takes positions with a coordinate for each entry of a list in its configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"axes_dims": [4, 2, 2]}
        self.layer = nn.Linear(8, 8)

    def forward(self, hidden_states: torch.Tensor, img_ids: torch.Tensor | None = None) -> torch.Tensor:
        columns = [img_ids[:, axis, None].expand(-1, size) for axis, size in enumerate(self.config["axes_dims"])]
        if img_ids.shape[1] != len(columns):
            raise ValueError("too many coordinates")
        return self.layer(hidden_states) * torch.cat(columns, -1)


def test_positions_have_a_coordinate_for_each_axis_of_the_configuration() -> None:
    assert shapes(Coordinates()) == {"hidden_states": (2, 7, 8), "img_ids": (7, 3)}


class Listed(nn.Module):
    """Takes a list of sizes and a number that its signature does not require."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(
        self,
        states: torch.Tensor,
        sizes: list[tuple[int, int, int]] | None = None,
        width: int | None = None,
        fast: bool = False,
    ) -> torch.Tensor:
        return self.layer(states).reshape(len(sizes), -1, width * 5)


def test_sizes_and_numbers_are_guessed_by_their_annotations() -> None:
    inputs = make_example_inputs(Listed())
    assert isinstance(inputs, dict)
    assert sorted(inputs) == ["sizes", "states", "width"]
    assert inputs["sizes"] == [(1, 1, 7)] * 2
    assert inputs["width"] == 1


class PackedPatches(nn.Module):
    """Takes images as lists of patches, and a mask of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"patch_size": 2, "num_channels": 3}
        self.layer = nn.Linear(12, 4)

    def forward(
        self, pixel_values: torch.Tensor, pixel_attention_mask: torch.Tensor, spatial_shapes: torch.LongTensor
    ) -> torch.Tensor:
        return self.layer(pixel_values).sum() * pixel_attention_mask.sum() * spatial_shapes.sum()


def test_mask_of_patches_has_an_element_for_each_patch() -> None:
    found = shapes(PackedPatches())
    assert found["pixel_attention_mask"] == found["pixel_values"][:2] == (2, 16)


class SizedGrids(nn.Module):
    """Takes a size for each of its grids of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)

    def forward(self, pixel_values: torch.Tensor, grid_thw: torch.Tensor, merge_sizes: torch.Tensor) -> torch.Tensor:
        merged = sum(int(grid.prod()) // size for grid, size in zip(grid_thw, merge_sizes.tolist(), strict=True))
        return self.embed(pixel_values)[:merged]


def test_there_is_a_size_for_each_grid() -> None:
    guesses = synthesize_inputs(SizedGrids()).guesses
    assert guesses["merge_sizes"] == "sizes_of_grids"


class Labelled(nn.Module):
    """Has one class for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.classes = nn.Linear(5, 5), nn.Embedding(3, 5)

    def forward(self, hidden_states: torch.Tensor, class_labels: torch.LongTensor) -> torch.Tensor:
        return self.layer(hidden_states) + self.classes(class_labels)[:, None, None].mean(1)


def test_batch_element_has_one_label() -> None:
    assert shapes(Labelled())["class_labels"] == (2,)
