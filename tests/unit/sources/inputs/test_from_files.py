"""Inputs that are given in files: JSON to tensors, and other content is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelexport.errors import InputError
from modelexport.sources.inputs import choose_inputs
from modelexport.sources.inputs.from_files import fill_shapes, read_inputs
from modelexport.sources.inputs.synthesis import ModelFacts

FACTS = ModelFacts.read(torch.nn.Identity())


def written(folder: Path, content: Any) -> Path:
    path = folder / "inputs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_lists_of_numbers_are_tensors_of_the_type_that_torch_gives_them(tmp_path: Path) -> None:
    read = read_inputs(written(tmp_path, {"ids": [[1, 2], [3, 4]], "x": [0.5, 1], "mask": [True, False]}))
    assert isinstance(read, dict)
    assert {name: value.dtype for name, value in read.items()} == {
        "ids": torch.int64,
        "x": torch.float32,
        "mask": torch.bool,
    }
    assert read["ids"].tolist() == [[1, 2], [3, 4]]


def test_type_and_shape_can_be_said(tmp_path: Path) -> None:
    read = read_inputs(written(tmp_path, {"x": {"data": [1, 2, 3, 4], "dtype": "float16", "shape": [2, 2]}}))
    assert isinstance(read, dict)
    assert read["x"].dtype is torch.float16
    assert read["x"].tolist() == [[1, 2], [3, 4]]


def test_other_objects_are_arguments_with_parts_and_numbers_stay_numbers(tmp_path: Path) -> None:
    content = {"batch": {"image": [[1.0]], "size": {"data": 3}}, "steps": 4, "fast": True, "pairs": [{"a": [1]}, {}]}
    read = read_inputs(written(tmp_path, content))
    assert isinstance(read, dict)
    assert read["batch"]["image"].shape == (1, 1)
    assert read["batch"]["size"].shape == ()
    assert (read["steps"], read["fast"]) == (4, True)
    assert read["pairs"][0]["a"].tolist() == [1]


def test_dots_in_names_lead_into_arguments(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, **{"x": np.ones(1), "pair.left": np.ones(2), "pair.many.1": np.ones(3), "pair.many.0": np.ones(4)})
    for read in (read_inputs(path), fill_shapes(["x=1", "pair.left=2", "pair.many.1=3", "pair.many.0=4"], FACTS)):
        shapes = torch.utils._pytree.tree_map(lambda tensor: tensor.numel(), read)
        assert shapes == {"x": 1, "pair": {"left": 2, "many": [4, 3]}}
    for names in (["x=1", "x.y=2"], ["x.y=1", "x=2"]):
        with pytest.raises(InputError, match=r"x.*same place"):
            fill_shapes(names, FACTS)


class OneRequired(torch.nn.Module):
    def forward(self, signal: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return signal


class Two(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


class Positional(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0]


def test_shape_without_a_name_is_that_of_the_one_input_that_forward_requires() -> None:
    named = choose_inputs(OneRequired(), shapes=["2x3:int64"]).inputs
    assert {name: (value.shape, value.dtype) for name, value in named.items()} == {"signal": ((2, 3), torch.int64)}
    (by_position,) = choose_inputs(Positional(), shapes=["scalar"]).inputs
    assert by_position.shape == ()
    with pytest.raises(InputError, match="'2x3' names no input: write name=2x3; the inputs are left, right"):
        choose_inputs(Two(), shapes=["right=1", "2x3"])


def test_names_that_lead_very_deep_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"a." * 2000: np.ones(1)})
    with pytest.raises(InputError, match="2000 dots: inputs are nested at most 64"):
        read_inputs(tmp_path / "x.npz")


def test_list_contains_arguments_by_position(tmp_path: Path) -> None:
    read = read_inputs(written(tmp_path, [[[1.0, 2.0]], [3]]))
    assert isinstance(read, tuple)
    assert [tuple(tensor.shape) for tensor in read] == [(1, 2), (1,)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"x": [1, ', "cannot be read as a JSON file"),
        ('{"x": [NaN]}', "cannot be read as a JSON file"),
        ("3", "contains a int: write an object"),
        ({"x": [[1, 2], [3]]}, "x is not a tensor"),
        ({"x": ["a"]}, "x is not a tensor"),
        ({"x": {"data": [1], "dtype": "int99"}}, "x has the dtype 'int99'"),
        ({"x": {"data": [1, 2, 3], "shape": [2, 2]}}, "x has 3 elements, which do not fit the shape [2, 2]"),
        ({"x": {"y": {"data": ["b"]}}}, "x.y is not a tensor"),
        ("[" * 5000 + "]" * 5000, "inputs.json"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deep"),
    ],
)
def test_object_that_cannot_be_an_input_is_refused_by_name(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_inputs(written(tmp_path, content))
    assert said in str(caught.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json"):
        read_inputs(tmp_path / "none.json")


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.zeros((2, 3), np.float16))
    read = read_inputs(tmp_path / "inputs.npz")
    assert isinstance(read, dict)
    assert read["x"].dtype is torch.float16
