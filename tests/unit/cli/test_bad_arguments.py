"""The command line with bad arguments: a one-line error, and no file is lost."""

from __future__ import annotations

import json
import signal
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.command import Outcome
from tests.support.command_process import (
    FACTORIES,
    IMPORTED_BY_THE_ENTRY,
    INTERRUPTED_IMPORT,
    INTERRUPTIBLE,
    NO_INPUTS,
    files_in,
    in_process,
    start,
)
from tests.support.factories import STARTED_VARIABLE


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("no_such_package.models:make", "no_such_package"),
        (f"{FACTORIES}.deeper:make", f"{FACTORIES}.deeper"),
        (f"{FACTORIES}:no_such_factory", "no_such_factory"),
        (f"{FACTORIES}:Net.no_such_method", "no_such_method"),
        (f"{FACTORIES}:not_a_factory", "int"),
        (f"{FACTORIES}:raises", "RuntimeError: the weights are elsewhere"),
        (f"{FACTORIES}:needs_arguments", "size"),
        (f"{FACTORIES}:returns_text", "str"),
        ("neither_this_nor_that", "package.module:factory"),
        (":make", "package.module:factory"),
        ("builtin:gpt-17", "gpt-17"),
    ],
)
def test_model_reference_that_leads_to_no_model_is_one_line_that_names_it(
    command: Callable[..., Outcome], tmp_path: Path, model: str, named: str
) -> None:
    outcome = command("export", model, tmp_path / "net.onnx")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert model.removeprefix("builtin:") in outcome.error
    assert named in outcome.error
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize(
    ("output", "options", "named"),
    [
        ("net.txt", (), "net.txt"),
        ("file/net.onnx", (), "file/net.onnx"),
        ("/proc/net.onnx", (), "/proc/net.onnx"),
        ("net.onnx", ("--report", "file/report.md"), "file/report.md"),
        ("net.onnx", ("--fx-graph", "file/graph.txt"), "file/graph.txt"),
        ("net.onnx", ("--strategy", "clairvoyance"), "clairvoyance"),
        ("net.onnx", ("--input-shape", "x=1xtwo"), "x=1xtwo"),
        ("net.onnx", ("--input-shape", "1x3x"), "1x3x"),
        ("net.onnx", ("--input-shape", "x=1x3:float5"), "float5"),
        ("net.onnx", ("--input-shape", "y=2x3x4x4"), "(given: y)"),
        ("net.onnx", ("--input-shape", "x=" + "9" * 5000), "cannot be read"),
        ("net.onnx", ("--inputs", "bomb.npz"), "expands to 300,000,000 bytes"),
        ("net.onnx", ("--inputs", "file"), "file"),
        ("net.onnx", ("--inputs", "missing.npz"), "missing.npz"),
        ("net.onnx", ("--inputs", "single.npy"), "single.npy"),
        ("net.onnx", ("--inputs", "pickled.npz"), "pickled.npz"),
        ("net.onnx", ("--inputs", "good.npz", "--input-shape", "x=2x3x4x4"), "--inputs and --input-shape"),
        ("net.onnx", NO_INPUTS, "no example inputs could be synthesized for Unwilling"),
    ],
)
def test_argument_that_cannot_be_used_is_one_line_that_names_it(
    command: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    options: tuple[str, ...],
    named: str,
) -> None:
    (tmp_path / "file").write_bytes(b"not a folder, and no archive")
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "good.npz", x=np.zeros((2, 3, 4, 4), np.float32))
    if "bomb.npz" in options:
        with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(3):
                archive.writestr(f"x{number}.npy", bytes(10**8))
    before = files_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    factory = "unwilling" if options is NO_INPUTS else "net_with_inputs"
    outcome = command("export", f"{FACTORIES}:{factory}", output, *options)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert named in outcome.error
    assert files_in(tmp_path) == before


def test_inputs_that_forward_fails_on_are_one_line_and_leave_an_existing_output_untouched(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    target = tmp_path / "net.onnx"
    target.write_bytes(b"what stood here before")
    outcome = command("export", f"{FACTORIES}:net", target, "--force", "--input-shape", "x=2x5x4x4")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "Net.forward fails on the example inputs" in outcome.error
    assert files_in(tmp_path) == {"net.onnx": b"what stood here before"}


def test_debug_shows_the_traceback_at_any_position(command: Callable[..., Outcome], tmp_path: Path) -> None:
    missing = tmp_path / "none.onnx"
    outcome = in_process("tree", missing, "--debug")
    assert outcome.code != 0
    assert "Traceback (most recent call last)" in outcome.stderr
    assert "InputError: " in outcome.stderr.splitlines()[-1]
    outcome = command("--debug", "tree", missing)
    assert outcome.code == 2
    assert "Traceback" in outcome.stderr


@pytest.mark.parametrize(
    "arguments", [("tree",), ("tree", "x.onnx", "--depth", "-1"), ("export", "m:f"), ("frobnicate",)]
)
def test_wrong_use_is_exit_code_2_with_nothing_on_stdout(
    command: Callable[..., Outcome], arguments: tuple[str, ...]
) -> None:
    outcome = command(*arguments)
    assert (outcome.code, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("error: ")
    assert "--help" in line


def test_interrupt_during_imports_exits_130_with_a_message() -> None:
    outcome = in_process(script=INTERRUPTED_IMPORT)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", "interrupted: nothing was written\n")


def test_nothing_but_the_entry_is_imported_before_an_interrupt_is_handled() -> None:
    outcome = in_process(script=IMPORTED_BY_THE_ENTRY)
    assert outcome.stdout.split() == ["__future__", "modelexport", "modelexport.__main__", "modelexport._version"]


@pytest.mark.integration
def test_interrupt_exits_130_and_keeps_existing_files(tmp_path: Path) -> None:
    folder, started = tmp_path / "out", tmp_path / "started"
    folder.mkdir()
    target = folder / "net.onnx"
    target.write_bytes(b"what stood here before")
    with start(
        *("export", f"{FACTORIES}:waiting", target, "--force", "--report", folder / "report.md"),
        script=INTERRUPTIBLE,
        **{STARTED_VARIABLE: str(started)},
    ) as process:
        deadline = time.monotonic() + 90
        while not started.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert started.exists(), process.communicate()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == ""
    assert stderr.splitlines()[-1] == "interrupted: nothing was written"
    assert "Traceback" not in stderr
    assert files_in(folder) == {"net.onnx": b"what stood here before"}
    assert list(folder.iterdir()) == [target]


def test_json_on_stdout_is_whole_when_the_factory_prints(command: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command("export", f"{FACTORIES}:talkative", tmp_path / "net.onnx", "--format", "json")
    assert json.loads(outcome.stdout)["summary"]["success"] is True


@pytest.mark.parametrize(("option", "name"), [("--report", "net.onnx"), ("--fx-graph", "net_hierarchy.json")])
def test_report_and_dump_cannot_take_the_place_of_the_files_of_the_export(
    command: Callable[..., Outcome], tmp_path: Path, option: str, name: str
) -> None:
    outcome = command("export", f"{FACTORIES}:net_with_inputs", tmp_path / "net.onnx", option, tmp_path / name)
    assert outcome.code == 2
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("shape", ["x=99999999999x99999999999", "x=2x3:qint8"])
def test_invalid_shape_is_a_one_line_error_with_the_shape(
    command: Callable[..., Outcome], tmp_path: Path, shape: str
) -> None:
    outcome = command("export", f"{FACTORIES}:net", tmp_path / "net.onnx", "--input-shape", shape)
    assert outcome.code == 2
    assert shape in outcome.error


def test_path_that_is_too_long_is_one_line_that_names_it() -> None:
    # In a process of its own: after an error of the file system, stdout is closed.
    outcome = in_process("tree", "x" * 5000)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr == f"error: {'x' * 80}…: File name too long\n"
