"""The command line as a whole: help, versions, completion, shared options, streams that end, widths."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from tests.support.command import Outcome
from tests.support.command_process import COMMAND, FACTORIES, Exported, files_in, in_process

from modelexport.cli.main import _COMMANDS
from modelexport.cli.options import with_options

NAMES = [name for commands in _COMMANDS.values() for name in commands]
RUN_HELP = """
import sys
from modelexport.cli.main import run
try:
    run()
finally:
    heavy = [name for name in ("torch", "onnx", "onnx_ir", "numpy", "transformers") if name in sys.modules]
    print(heavy, file=sys.stderr)
"""

RUN_EVERY_HELP = """
import contextlib, io, sys
from modelexport.cli.main import _COMMANDS, run
for name in [name for commands in _COMMANDS.values() for name in commands]:
    sys.argv = ["modelexport", name, "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
        run()
    heavy = [name for name in ("torch", "onnx", "onnx_ir", "numpy", "transformers") if name in sys.modules]
    print(name, "Usage" in shown.getvalue(), heavy)
"""


def options_of(name: str) -> dict[str, inspect.Parameter]:
    function = getattr(importlib.import_module(f"modelexport.cli.{name}"), name)
    parameters = inspect.signature(with_options(function)).parameters
    return {key: value for key, value in parameters.items() if value.annotation is not typer.Context}


def flags(parameter: inspect.Parameter) -> tuple[str, ...]:
    (info,) = parameter.annotation.__metadata__
    # typer takes the first name for the default value until it reads the annotation.
    return tuple(flag for flag in (info.default, *(info.param_decls or ())) if isinstance(flag, str))


def test_help_shows_every_command_in_its_panel_and_imports_no_library() -> None:
    outcome = in_process("--help", script=RUN_HELP)
    assert (outcome.code, outcome.stderr) == (0, "[]\n")
    panels = re.split(r"─ (\w+) ─", outcome.stdout)
    shown = dict(zip(panels[1::2], panels[2::2], strict=True))
    for panel, commands in _COMMANDS.items():
        for name, line in commands.items():
            assert re.search(rf"^│ {name} +{line.split()[0]} ", shown[panel], re.MULTILINE), (panel, name)


def test_help_of_every_command_imports_neither_torch_nor_onnx() -> None:
    outcome = in_process(script=RUN_EVERY_HELP)
    assert outcome.stdout.splitlines() == [f"{name} True []" for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_line_in_the_table_is_the_first_of_the_commands_own_help(name: str) -> None:
    (line,) = (commands[name] for commands in _COMMANDS.values() if name in commands)
    function = getattr(importlib.import_module(f"modelexport.cli.{name}"), name)
    assert inspect.getdoc(function).splitlines()[0] == line  # type: ignore[union-attr]  # every command has one


@pytest.mark.parametrize("columns", [72, 100])
def test_paragraphs_of_help_fill_the_width_of_the_terminal(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = command("tree", "--help").stdout
    paragraph = shown[shown.index("Reads files") : shown.index("Examples:")].strip().splitlines()
    first_words = [line.split()[0] for line in paragraph[1:]]
    # Each line is full: the first word of the next one does not fit.
    for line, word in zip(paragraph, first_words, strict=False):
        assert len(line.strip()) + 1 + len(word) > columns - 2


def test_version_names_the_libraries_that_it_works_with() -> None:
    lines = in_process("--version").stdout.splitlines()
    assert lines[0].startswith("modelexport ")
    for name in ("torch", "onnx", "onnxruntime"):
        assert f"{name} {importlib.metadata.version(name)}" in lines


def test_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "modelexport", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("modelexport ")


def test_shell_completes_commands_and_their_options() -> None:
    def completed(words: str) -> list[str]:
        environment = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return in_process(_MODELEXPORT_COMPLETE="complete_bash", **environment).stdout.split()

    assert completed("modelexport ver") == ["verify"]
    assert completed("modelexport tree --dep") == ["--depth"]


@pytest.mark.parametrize("name", NAMES)
def test_one_idea_has_one_spelling_in_every_command(name: str) -> None:
    parameters = options_of(name)
    spelled = {parameter: flags(value) for parameter, value in parameters.items()}
    everything = {flag for found in spelled.values() for flag in found}
    assert {"--quiet", "-q", "--verbose", "-v", "--debug", "--output", "-o"} <= everything
    # The results of a batch are not replaced.
    assert "--force" in everything or name == "batch"
    assert not everything & {"--filter", "--output-dir", "--repair", "--out"}
    # `view` writes pages and drawings, not a report.
    if "output_format" in parameters and name != "view":
        kinds = str(parameters["output_format"].annotation)
        form = parameters["output_format"].annotation.__args__[0]
        values = {value.value for value in getattr(form, "__args__", (form,))[0]}
        assert {"human", "json"} <= values, kinds


def test_closed_pipe_is_not_the_exit_code_for_findings(bert: Exported) -> None:
    for arguments in (("analyze", bert.onnx_path, "--format", "json"), ("--help",)):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            done = subprocess.run(
                [COMMAND, *arguments], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
        assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_full_device_is_one_line(bert: Exported) -> None:
    for arguments in (("tree", bert.onnx_path), ("schema",), ("--help",)):
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            done = subprocess.run(
                [COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
            )
        assert done.returncode == 2
        assert re.fullmatch(r"error: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("tree", "FILE"),
        ("analyze", "FILE"),
        ("analyze", "FILE", "--detailed", "--show-resolution-details"),
        ("validate", "FILE"),
        ("compare", "FILE", "FILE"),
        ("verify", "FILE", "--model", "builtin:bert-tiny"),
        ("inspect", "builtin:bert-tiny"),
    ],
)
def test_report_fits_the_terminal(
    bert: Exported, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = command(*(bert.onnx_path if word == "FILE" else word for word in arguments))
    assert outcome.code == 0
    assert max(map(len, outcome.stdout.splitlines())) <= 80


def test_tree_cuts_no_word_where_a_line_is_too_long(
    bert: Exported, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = command("tree", bert.onnx_path).stdout
    monkeypatch.setenv("COLUMNS", "60")
    narrow = command("tree", bert.onnx_path).stdout
    assert max(map(len, narrow.splitlines())) <= 60
    assert sorted(re.findall(r"[\w,]+", narrow)) == sorted(re.findall(r"[\w,]+", whole))


def test_pipe_gets_the_columns_and_rows_that_a_terminal_has_no_room_for(
    bert: Exported, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = command("analyze", bert.onnx_path).stdout
    assert "transformers.models.bert.modeling_bert.BertLayer" in piped
    assert "more" not in piped.partition("Classes with most nodes")[2].partition("BertModel")[0]
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("analyze", bert.onnx_path).stdout
    assert "transformers.models.bert" not in shown
    assert "columns omitted to fit the width: qualified class, operations" in shown


def test_name_of_the_file_says_the_format(bert: Exported, command: Callable[..., Outcome], tmp_path: Path) -> None:
    assert command("tree", bert.onnx_path, "-o", tmp_path / "tree.json").code == 0
    assert json.loads((tmp_path / "tree.json").read_text())["schema_version"] == 1
    assert command("analyze", bert.onnx_path, "-o", tmp_path / "modules.csv").code == 0
    assert (tmp_path / "modules.csv").read_text().startswith("path,class,")
    outcome = command("tree", bert.onnx_path, "-o", tmp_path / "tree.csv")
    assert (outcome.code, outcome.error) == (
        2,
        f"error: {tmp_path / 'tree.csv'}: unknown file extension. Use .txt, .json, or give --format.",
    )
    assert files_in(tmp_path).keys() == {"tree.json", "modules.csv"}


def test_quiet_export_prints_nothing_and_next_step_quotes_the_path(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    target = tmp_path / "my net.onnx"
    outcome = command("export", f"{FACTORIES}:net_with_inputs", "-o", target)
    assert f"next: modelexport tree '{target}'" in outcome.stdout
    outcome = command("export", f"{FACTORIES}:net_with_inputs", target, "--force", "-q")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "", "")


def test_selector_and_output_are_given_once(command: Callable[..., Outcome], tmp_path: Path, bert: Exported) -> None:
    plain = command("select", bert.onnx_path, "class:LayerNorm").stdout
    assert command("select", bert.onnx_path, "--select", "class:LayerNorm").stdout == plain
    for arguments in (
        ("select", bert.onnx_path),
        ("select", bert.onnx_path, "a", "--select", "b"),
        ("export", "m:f", tmp_path / "a.onnx", "-o", tmp_path / "b.onnx"),
    ):
        assert "once" in command(*arguments).error


@pytest.mark.parametrize("name", ["tag", "retag", "repair"])
def test_help_says_that_the_file_is_replaced_with_force_alone(command: Callable[..., Outcome], name: str) -> None:
    words = " ".join(command(name, "--help").stdout.replace("│", " ").split())
    assert "Without it, --force replaces FILE." in words
    assert "replaced by default" not in words


def test_repair_replaces_the_file_only_where_that_is_asked_for(
    bert: Exported, command: Callable[..., Outcome], tmp_path: Path
) -> None:
    path = bert.copy(tmp_path)
    (tmp_path / "bert_hierarchy.json").unlink()
    before = files_in(tmp_path)
    assert "--force" in command("repair", path).error
    assert files_in(tmp_path) == before
    other = command("repair", path, "-o", tmp_path / "other.onnx", "--format", "json")
    assert json.loads(other.stdout)["origin"] == "doc_string"
    assert files_in(tmp_path).keys() == {*before, "other.onnx", "other_hierarchy.json"}
    assert command("repair", path, "--force").code == 0
    assert command("validate", path).code == 0
