"""Arguments of a batch that are wrong: one error, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modelexport
from modelexport import InputError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"output": ""}, "the folder or URL is empty"),
        ({"cache": ""}, "the folder or URL is empty"),
        ({"memory": float("inf")}, "memory is inf: give a positive number, at most"),
        ({"memory": "8"}, "memory is 8: give a positive number"),
        ({"timeout": float("nan")}, "timeout is nan: give a positive number"),
    ],
)
def test_wrong_argument_is_one_error(
    arguments: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        modelexport.batch(["builtin:bert-tiny"], **{"output": "out", **arguments})
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []
