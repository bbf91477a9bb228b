"""The sizes of dynamic axes for which a graph is valid, as torch found them while it traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modelexport.capture.fx import capture_with_dynamo
from modelexport.hierarchy import SizeRange

pytestmark = pytest.mark.filterwarnings("ignore")
Dim = torch.export.Dim


class Chosen(nn.Module):
    """Computes something else for short and for long inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 8:
            return x * 2
        return x.softmax(1) if x.shape[1] <= 100 else x.sigmoid()


class Positions(nn.Module):
    """Adds the embedding of each position, of which there are 32."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.weight[: x.shape[1], 0]


class Skip(nn.Module):
    """Halves the length and doubles it again."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(1, 1, 3, 2, 1), nn.ConvTranspose1d(1, 1, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.up(self.down(x))
        return found


class Modulo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[1] % 4 == 3 else x - 1


class Padded(nn.Module):
    """Fills up to a multiple of 4, and takes another way beyond the length of the example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 4:
            x = torch.nn.functional.pad(x, (0, 4 - x.shape[1] % 4))
        y = x.reshape(x.shape[0], -1, 4)
        return y.cumsum(1) if x.shape[1] <= 8 else y.sin()


RESULTS: list[tuple[nn.Module, tuple[int, ...], Any, dict[str, SizeRange]]] = [
    (Chosen(), (2, 16), ({0: "rows", 1: "n"},), {"n": SizeRange(min=8, max=100, place="test_size_ranges.py:24")}),
    (Positions(), (2, 16), ({1: "n"},), {"n": SizeRange(max=32, place="test_size_ranges.py:35")}),
    (Skip(), (2, 1, 16), ({0: "rows", 2: "n"},), {"n": SizeRange(min=4, step=2)}),
    (Skip(), (2, 1, 16), ({2: 4 * Dim("n")},), {"4*n": SizeRange(step=4)}),
    (Modulo(), (2, 15), ({1: "n"},), {"n": SizeRange(step=4, offset=3)}),
    (Modulo(), (2, 15), ({1: 4 * Dim("n") + 3},), {"4*n + 3": SizeRange(step=4, offset=3)}),
    (Padded(), (2, 8), ({1: "n"},), {"n": SizeRange(max=8, step=4, place="test_size_ranges.py:62")}),
    (nn.Linear(4, 4), (2, 4), ({0: "rows"},), {}),
    (nn.Linear(4, 4), (2, 4), None, {}),
]


@pytest.mark.parametrize(("model", "shape", "shapes", "found"), RESULTS)
def test_sizes_are_limited_to_what_torch_found(
    model: nn.Module, shape: tuple[int, ...], shapes: Any, found: dict[str, SizeRange]
) -> None:
    options = {"dynamic_shapes": shapes} if shapes is not None else {}
    assert dict(capture_with_dynamo(model.eval(), (torch.randn(shape),), {}, options).size_ranges) == found
