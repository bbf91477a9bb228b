"""The check of owners by value: copied values and common values are not evidence against an owner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport
from modelexport.verification.contamination_by_value import validate_owners_by_value

pytestmark = pytest.mark.integration


class Rolled(nn.Module):
    """Reverses the output of another module along each axis, by splitting and concatenating it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.roll(self.inner(x), shifts=(1, 2), dims=(1, 2)) * 2


class ChannelsLast(nn.Module):
    """A norm over the second axis: transposes, normalizes the last axis, and transposes back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Mixed(nn.Module):
    """Also normalizes the last axis: the optimizer removes the transposes between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x.permute(0, 2, 3, 1)
        return self.lin(nn.functional.pad(last, (0, 0, 0, 1))).relu()


class Scaled(nn.Module):
    """Weights of equal elements, as before training; constants of other modules have the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x.relu() ** 2 + self.bias


class Places(nn.Module):
    """Computes the same for every input: exporters fold it into a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(2, 128, 1)

    def forward(self, batch: int, height: int, width: int) -> torch.Tensor:
        down = torch.arange(height, dtype=torch.float32)[:, None].expand(height, width)
        right = torch.arange(width, dtype=torch.float32)[None].expand(height, width)
        return self.proj(torch.stack([down.sin(), right.cos()])[None]).repeat(batch, 1, 1, 1)


class Placed(nn.Module):
    """Transposes a constant that is too large to be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places()
        self.lin = nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places(x.shape[0], 8, 8).reshape(x.shape[0], -1, 64).permute(0, 2, 1)
        return self.lin(x + places)


class Flattened(nn.Module):
    """Flattens both of its inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(256, 8)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.lin(x.flatten(2) + places.flatten(2))


class RepeatedOnce(nn.Module):
    """Repeats tensors once: their values are in the graph before, too, in the layout that the inner call receives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Flattened()

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.inner(x.repeat_interleave(1, dim=0), places.repeat_interleave(1, dim=0))


class PlacesRepeatedOnce(nn.Module):
    """Passes a tensor that depends on no input, and is too large to be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = RepeatedOnce()
        self.register_buffer("places", torch.randn(64, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, self.places.sin().unsqueeze(0).repeat(x.shape[0], 1, 1, 1))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Rolled(), (2, 5, 4, 6)),
        (nn.Sequential(ChannelsLast(), Mixed()), (2, 6, 5, 4)),
        (nn.Sequential(nn.Conv2d(6, 6, 1), nn.GroupNorm(1, 6), Scaled()), (2, 6, 5, 4)),
        (Placed(), (2, 64, 128)),
        (PlacesRepeatedOnce(), (2, 64, 16, 16)),
    ],
    ids=["rolled", "axes changed twice", "constant and weight in one", "laid out from the file", "repeated once"],
)
def test_right_owners_are_not_suspected_because_of_moved_or_common_values(
    tmp_path: Path, model: nn.Module, shape: tuple[int, ...]
) -> None:
    example = torch.randn(shape)
    result = modelexport.export_model(model.eval(), example, tmp_path / "m.onnx")
    report = validate_owners_by_value(result.onnx_path, model, example)
    assert [(finding.node, finding.message) for finding in report.findings] == []
