"""`modelexport catalog` and `modelexport cache` as users call them, at the width of a small terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from tests.support.batch_records import write_output
from tests.support.command import Outcome
from tests.support.schemas import closed


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_output(tmp_path / "out")


def test_commands_answer_within_80_columns(
    command: Callable[..., Outcome], output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    commands = [
        ["catalog", "ls", output],
        ["catalog", "ls", output, "--status", "crashed"],
        ["catalog", "show", output, "c"],
        ["catalog", "stats", output],
        ["catalog", "diff", output, "--before", "torch=2.12.0"],
        ["catalog", "diff", output, output],
        ["catalog", "ls", output, "--format", "csv"],
        ["catalog", "stats", output, "--format", "json"],
        ["cache", "info", tmp_path / "cache"],
        ["cache", "prune", tmp_path / "cache", "--older-than", "30"],
    ]
    monkeypatch.setenv("COLUMNS", "80")
    found = [command(*arguments) for arguments in commands]
    assert [outcome.code for outcome in found] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0], found
    listed, crashed, shown, stats, changed, same, table, counted, info, pruned = (one.stdout for one in found)
    assert max(len(line) for text in (listed, crashed, shown, stats, changed) for line in text.splitlines()) <= 80
    assert "4 rows: 2 succeeded, 1 findings, 1 failed" in listed
    assert "a: SIGSEGV <b>" in listed
    assert "1 row: 1 failed" in crashed
    assert "did not pass" in shown
    assert "timed_out" in shown
    assert "Worst verified" in stats
    assert "4 jobs: 1 broken, 2 changed, 1 added" in changed
    assert "4 jobs: nothing changed" in same
    assert len(table.splitlines()) == 5
    assert json.loads(counted)["failures"] == {"crashed": 1}
    assert "entries" in info
    assert pruned == "removed 0 entries and 0.00 MB of files\n"


def test_unknown_status_is_an_error_that_lists_the_known_ones(command: Callable[..., Outcome], output: Path) -> None:
    outcome = command("catalog", "ls", output, "--status", "fail")
    assert outcome.code == 2
    assert "--status 'fail' is unknown: use succeeded, findings, failed, bad_input," in outcome.error


def test_json_of_every_action_is_what_its_schema_says(command: Callable[..., Outcome], output: Path) -> None:
    (output.parent / "cache").mkdir()
    for arguments in (
        ("catalog", "ls", output, "--attempts"),
        ("catalog", "show", output, "c"),
        ("catalog", "stats", output),
        ("catalog", "diff", output, "--before", "torch=2.12.0"),
        ("cache", "info", output.parent / "cache"),
    ):
        schema = closed(json.loads(command("schema", arguments[0]).stdout))
        content = json.loads(command(*arguments, "--format", "json").stdout)
        jsonschema.Draft202012Validator(schema).validate(content)
        assert content["schema_version"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["catalog", "show", "{output}"], "needs the name of a job"),
        (["catalog", "show", "{output}", "bb"], "has no job 'bb'; did you mean b?"),
        (["catalog", "diff", "{output}"], "needs two states"),
        (["catalog", "diff", "{output}", "--before", "yesterday"], "--before 'yesterday' cannot be read"),
        (["catalog", "diff", "{output}", "--before", "torch=1.0"], "has no attempt in this state"),
        (["catalog", "ls", "{output}", "--before", "2026-01-01"], "catalog ls has no --before"),
        (["catalog", "ls", "{output}/none"], "has no records"),
        (["catalog", "stats", "{output}", "--format", "csv"], "has no CSV"),
        (["cache", "info", "{output}/none"], "is not a folder"),
    ],
)
def test_wrong_use_is_one_error(
    command: Callable[..., Outcome], output: Path, arguments: list[str], words: str
) -> None:
    outcome = command(*(word.format(output=output) for word in arguments))
    assert outcome.code == 2
    assert words in outcome.error
