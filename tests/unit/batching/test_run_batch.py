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
        ({"output": 3}, "a folder or URL is text or a path, not int"),
        ({"jobs": [{3: "a"}]}, "unknown field '3'"),
        ({"from_file": 3}, "from_file is the path of a list of models, not int"),
        ({"from_file": "\0"}, "cannot be read"),
        ({"defaults": "opset=18"}, "defaults are a dict of fields, not str"),
        ({"storage_options": 3}, "storage_options are a dict of the driver's arguments, not int"),
        ({"shard": 3}, "--shard 3 cannot be read"),
        ({"timeout": float("nan")}, "timeout is nan: give a positive number"),
    ],
)
def test_wrong_argument_is_one_error(
    arguments: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        modelexport.batch(**{"jobs": ["builtin:bert-tiny"], "output": "out", **arguments})
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_jobs_of_export_batch_that_are_no_list_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jobs are a file, a model, a pattern or a list of these, not int"):
        modelexport.export_batch(3, tmp_path / "out")  # type: ignore[arg-type]
