"""Dynamic axes stay with their inputs, in whichever order and form these are given."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support.dynamic_files import dimensions, plain, same_at_other_sizes
from tests.support.plain import export_plainly
from torch import nn

import modelexport
from modelexport.capture.dynamic_axes import ExampleCall

# --- the order of the inputs -----------------------------------------------------------------------------------------

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


class Three(nn.Module):
    """Arguments of one rank: the axes of one would fit another."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + z, y.sum() - y


class ThreeByKeyword(nn.Module):
    """The TorchScript exporter passes arguments by position, which this forward does not take."""

    def forward(self, *, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + z, y.sum() - y


class Nested(nn.Module):
    """Tensors inside of an argument, and optional arguments between others."""

    def forward(
        self,
        x: torch.Tensor,
        skipped: torch.Tensor | None = None,
        pair: dict[str, torch.Tensor] | None = None,
        y: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        assert pair is not None
        assert y is not None
        return x * 2, pair["left"] * 3, pair["right"] + 1, y - 1


THREE = {"x": {0: "n"}, "y": {0: "k", 1: "width"}, "z": {0: "n"}}


NESTED = {"x": {0: "n"}, "pair.left": {0: "l"}, "pair.right": {0: "r", 1: "width"}, "y": {1: "k"}}


WAYS = {"fx": "dynamo", "htp": "torchscript", "usage_based": "dynamo"}


def three(order: Iterable[str] = THREE) -> dict[str, torch.Tensor]:
    tensors = {"x": torch.randn(4, 3), "y": torch.randn(5, 3), "z": torch.randn(4, 3)}
    return {name: tensors[name] for name in order}


def check_in_order(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    path: Path,
    axes: dict[str, dict[int, str]],
    **options: Any,
) -> modelexport.ExportResult:
    """Every axis is dynamic under its name at its own input, and the file gives PyTorch's results at other sizes."""
    result = modelexport.export_model(model, args, path, kwargs=kwargs, dynamic=axes, **options)
    assert dimensions(path) == {plain(name): named for name, named in axes.items()}
    assert result.dynamic_axes == axes
    same_at_other_sizes(model, ExampleCall(model, args, kwargs), path, axes)
    return result


@pytest.mark.parametrize("order", list(itertools.permutations(THREE)), ids="".join)
@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_axes_stay_with_their_inputs_in_any_order(strategy: str, order: tuple[str, ...], tmp_path: Path) -> None:
    check_in_order(Three(), (), three(order), tmp_path / "model.onnx", THREE, strategy=strategy)


@pytest.mark.parametrize("strategy", WAYS)
def test_axes_stay_with_their_inputs_beside_positional_ones(strategy: str, tmp_path: Path) -> None:
    given = three(("z", "y"))
    options = {"strategy": strategy, "exporter": WAYS[strategy]}
    check_in_order(Three(), (torch.randn(4, 3),), given, tmp_path / "model.onnx", THREE, **options)


@pytest.mark.parametrize("order", [("y", "x", "z"), ("z", "y", "x")], ids="".join)
def test_axes_stay_with_inputs_that_are_passed_by_keyword_alone(order: tuple[str, ...], tmp_path: Path) -> None:
    check_in_order(ThreeByKeyword(), (), three(order), tmp_path / "model.onnx", THREE, strategy="htp")


@pytest.mark.parametrize("strategy", ["fx", "htp"])
@pytest.mark.parametrize("order", [("x", "pair", "y"), ("y", "x", "pair"), ("pair", "y", "x")], ids="-".join)
@pytest.mark.parametrize("parts", [("left", "right"), ("right", "left")], ids="-".join)
def test_axes_stay_with_tensors_inside_of_arguments(
    strategy: str, order: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path
) -> None:
    pair = {name: torch.randn(3 + len(name), 3) for name in parts}
    given: dict[str, Any] = {"x": torch.randn(2, 3), "pair": pair, "y": torch.randn(2, 6)}
    kwargs = {name: given[name] for name in order}
    check_in_order(Nested(), (), kwargs, tmp_path / "model.onnx", NESTED, strategy=strategy)


def test_file_is_the_one_torch_writes_for_the_inputs_in_their_order(tmp_path: Path) -> None:
    inputs = three(("z", "y", "x"))
    shapes = {name: THREE[name] for name in inputs}
    plainly = export_plainly(Three().eval(), (), inputs, tmp_path / "plain.onnx", dynamic_shapes=shapes)
    modelexport.export_model(Three(), inputs, tmp_path / "ours.onnx", dynamic=THREE, strategy="fx", external_data=False)
    ours = modelexport.strip_hierarchy(onnx.load(tmp_path / "ours.onnx"))
    assert ours.SerializeToString(deterministic=True) == plainly.SerializeToString(deterministic=True)
    assert [value.name for value in ours.graph.input] == ["z", "y", "x"]


def test_name_that_torch_does_not_take_over_is_said(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x * scale

    inputs = {"x": torch.randn(3, 4), "scale": 2.0}
    named = {"x": {0: "rows"}}
    result = modelexport.export_model(Scaled(), inputs, tmp_path / "model.onnx", dynamic=named, strategy="fx")
    assert list(dimensions(tmp_path / "model.onnx")["x"]) == [0]
    assert "dynamic axes: x rows x 4 (the file uses other names for rows)" in result.notes
