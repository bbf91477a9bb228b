"""Names of an untrusted file that control a terminal or disguise the text around them are never printed as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import helper
from tests.support.command import Outcome

_NAME = "a\u202eb\u2028c\u200bd\x1b[31m"
_UNSAFE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def _saved(path: Path, operator: str) -> Path:
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(operator, ["x"], [f"m{_NAME}"], name=f"/{_NAME}/{operator}"),
        helper.make_node("Relu", [f"m{_NAME}"], ["y"], name=f"/{_NAME}x/Relu"),
    ]
    graph = helper.make_graph(nodes, _NAME, [value("x", 1, [1])], [value("y", 1, [1])])
    path.write_bytes(helper.make_model(graph, producer_name=_NAME).SerializeToString())
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["tree", "{a}"],
        ["analyze", "{a}"],
        ["analyze", "{a}", "--format", "csv"],
        ["select", "{a}", "*"],
        ["select", "{a}", f"op:{_NAME}"],
        ["validate", "{a}", "--check-contamination"],
        ["compare", "{a}", "{b}"],
        ["compare", "{a}", "{b}", "--format", "markdown"],
        ["compare", "{a}", "{b}", "--format", "html"],
        ["extract", "{a}", _NAME, "-o", "{a}.out.onnx"],
        ["tree", f"{{a}}{_NAME}"],
        ["tree", "{a}", f"--{_NAME}"],
        [_NAME],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[2:]).encode("ascii", "backslashreplace").decode(),
)
def test_unsafe_characters_in_names_are_not_printed(
    arguments: list[str], command: Callable[..., Outcome], tmp_path: Path
) -> None:
    files = {"a": _saved(tmp_path / "a.onnx", "Relu"), "b": _saved(tmp_path / "b.onnx", "Neg")}
    outcome = command(*(argument.format(**files) for argument in arguments))
    printed = (outcome.stdout + outcome.stderr).replace("\r\n", "\n")
    assert printed
    assert _UNSAFE.search(printed) is None
