"""Counts in messages: one of something has a singular noun."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.command import Outcome


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file with one weight, a node of the root and one of a module."""
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "a.weight"], ["y"], name="/a/Add"),
            helper.make_node("Split", ["y"], ["z", "w"], name="/Split", num_outputs=2),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("z", "w")],
        [helper.make_tensor("a.weight", TensorProto.FLOAT, [4], [1.0] * 4)],
    )
    path = tmp_path / "small.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("analyze",), "weights in the file: 1 tensor,"),
        (("analyze",), "at most 1 level deep"),
        (("profile", "--static", "--limit", "1"), "… and 1 more row (--limit"),
        (("profile", "--runs", "2", "--limit", "1"), "… and 1 more row (--limit"),
    ],
)
def test_one_of_something_is_singular(
    command: Callable[..., Outcome], small: Path, arguments: tuple[str, ...], expected: str
) -> None:
    outcome = command(*arguments, small)
    assert outcome.code == 0
    assert expected in outcome.stdout
    assert not re.search(r"(?<!of )\b1 (more )?(calls|nodes|tensors|levels|segments|rows|modules)\b", outcome.stdout)
