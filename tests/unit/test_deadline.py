"""The deadline for reading files: endless work ends in our error, in every command that reads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import helper
from tests.support.command import Outcome
from tests.support.hostile_graphs import model

import modelexport
from modelexport import deadline
from modelexport.cli.options import with_options
from modelexport.deadline import deadline_paused, read_within_limit
from modelexport.errors import FileFormatError, InputError
from modelexport.limits import ReadLimits


def spin(seconds: float) -> None:
    """Work in Python that handles every exception."""
    end = time.monotonic() + seconds
    with contextlib.suppress(Exception):
        while time.monotonic() < end:
            sum(range(100))


def limits(seconds: float) -> ReadLimits:
    return ReadLimits(seconds=seconds)


def test_work_that_does_not_end_is_an_error_that_names_file_limit_and_remedy() -> None:
    with pytest.raises(FileFormatError) as raised:
        read_within_limit(lambda: spin(60), "a.onnx", "b.onnx", limits=limits(0.05))
    assert str(raised.value) == (
        "a.onnx and b.onnx: reading took longer than the limit of 0.05 s; for a file that you trust, raise it by the "
        "environment variable MODELEXPORT_READ_SECONDS or by ReadLimits.seconds; inf is no limit"
    )


def test_work_that_ends_about_when_the_limit_does_is_not_interrupted_later() -> None:
    for number in range(300):
        with contextlib.suppress(FileFormatError):
            read_within_limit(lambda pause=number * 1e-5: time.sleep(pause), "a.onnx", limits=limits(0.001))
        sum(range(1000))
    watches = [thread for thread in threading.enumerate() if thread.name == "modelexport-deadline"]
    for thread in watches:
        thread.join(5)
    assert not any(thread.is_alive() for thread in watches)


@pytest.mark.timeout(30, method="thread")  # the loop is in the interpreter: no signal ends it
def test_code_can_be_profiled_afterwards() -> None:
    read_within_limit(lambda: None, "a.onnx")
    with contextlib.suppress(FileFormatError):
        read_within_limit(lambda: spin(60), "a.onnx", limits=limits(0.05))
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        spin(0)
    finally:
        sys.setprofile(None)
    assert calls


def test_deadline_that_expires_while_it_is_stopped_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = deadline._Watch.stop
    calls = []

    def interrupted(watch: Any) -> None:
        calls.append(watch)
        if len(calls) == 1:
            raise deadline._Expired
        stop(watch)

    monkeypatch.setattr(deadline._Watch, "stop", interrupted)
    with pytest.raises(FileFormatError):
        read_within_limit(lambda: None, "a.onnx")
    assert calls[0]._is_over.is_set()


def test_deadline_interrupts_the_thread_that_reads() -> None:
    with concurrent.futures.ThreadPoolExecutor() as threads:
        read = threads.submit(read_within_limit, lambda: spin(60), "a.onnx", limits=limits(0.05))
        with pytest.raises(FileFormatError):
            read.result()


def test_outer_function_has_the_deadline_of_inner_ones() -> None:
    def read_often() -> None:
        for _ in range(1000):
            read_within_limit(lambda: spin(0.01), "a.onnx", limits=limits(60))

    with pytest.raises(FileFormatError, match=r"limit of 0\.1 s"):
        read_within_limit(read_often, "a.onnx", limits=limits(0.1))


def test_paused_time_does_not_count_and_files_read_meanwhile_have_their_own_deadline() -> None:
    def read_in_a_pause() -> None:
        with deadline_paused():
            spin(0.6)
            with pytest.raises(FileFormatError, match=r"b\.onnx.*limit of 0\.05 s"):
                read_within_limit(lambda: spin(60), "b.onnx", limits=limits(0.05))

    read_within_limit(read_in_a_pause, "a.onnx", limits=limits(0.5))
    with pytest.raises(FileFormatError, match=r"a\.onnx.*limit of 0\.5 s"):
        read_within_limit(lambda: (read_in_a_pause(), spin(60)), "a.onnx", limits=limits(0.5))


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan"])
def test_variable_that_is_not_a_number_of_seconds_is_an_error(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("MODELEXPORT_READ_SECONDS", seconds)
    with pytest.raises(InputError, match=f"MODELEXPORT_READ_SECONDS is '{seconds}'"):
        read_within_limit(lambda: None, "a.onnx")


def test_command_has_the_deadline_also_while_it_formats_its_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def show(*, file: Path) -> None:
        spin(60)

    monkeypatch.setenv("MODELEXPORT_READ_SECONDS", "0.1")
    file = tmp_path / "a.onnx"
    file.touch()
    with pytest.raises(FileFormatError, match=rf"{file}: reading took longer"):
        with_options(show)(file=file)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that every reader takes a second or more for."""
    path = tmp_path_factory.mktemp("slow") / "slow.onnx"
    nodes = [helper.make_node("Identity", [f"a{n}" if n else "x"], [f"a{n + 1}"]) for n in range(60_000)]
    for number, node in enumerate(nodes):
        node.name = f"/m{number % 300}/Identity_{number}"
    path.write_bytes(model(*nodes).SerializeToString())
    return path


COMMANDS = {
    "tree": ["tree", "FILE"],
    "analyze": ["analyze", "FILE"],
    "select": ["select", "FILE", "m1"],
    "validate": ["validate", "FILE"],
    "compare": ["compare", "FILE", "FILE"],
    "extract": ["extract", "FILE", "m1", "-o", "OUT"],
    "extract --select": ["extract", "FILE", "--select", "*", "-o", "OUT"],
    "retag": ["retag", "FILE", "--from", "FILE", "-o", "OUT"],
    "repair": ["repair", "FILE", "-o", "OUT"],
    "view": ["view", "FILE", "--format", "svg", "-o", "OUT"],
    "profile --static": ["profile", "FILE", "--static"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_reads_a_file_ends_at_the_deadline(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: Path, name: str
) -> None:
    monkeypatch.setenv("MODELEXPORT_READ_SECONDS", "0.2")
    arguments = [{"FILE": str(slow), "OUT": str(tmp_path / "out.onnx")}.get(word, word) for word in COMMANDS[name]]
    started = time.monotonic()
    outcome = command(*arguments)
    assert outcome.code == 2
    assert str(slow) in outcome.error
    assert "longer than the limit of 0.2 s" in outcome.error
    assert time.monotonic() - started < 10
    assert list(tmp_path.iterdir()) == []


READERS: dict[str, Callable[[Path, ReadLimits], object]] = {
    "load": lambda path, given: modelexport.load(path, given),
    "read_model": lambda path, given: modelexport.read_model(path, limits=given),
    "analyze": lambda path, given: modelexport.analyze(path, limits=given),
    "select": lambda path, given: modelexport.select(path, "m1", limits=given),
    "compare_models": lambda path, given: modelexport.compare_models(path, path, limits=given),
    "view": lambda path, given: modelexport.view(path, limits=given),
    "profile_statically": lambda path, given: modelexport.profile_statically(path, limits=given),
}


@pytest.mark.parametrize("name", READERS)
def test_function_with_limits_ends_at_their_deadline(slow: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match=r"slow\.onnx.* longer than the limit of 0\.1 s"):
        READERS[name](slow, limits(0.1))


def test_without_a_limit_a_slow_file_is_read(monkeypatch: pytest.MonkeyPatch, slow: Path) -> None:
    monkeypatch.setenv("MODELEXPORT_READ_SECONDS", "0.1")
    assert len(modelexport.read_model(slow, limits(math.inf)).nodes) == 60_000
