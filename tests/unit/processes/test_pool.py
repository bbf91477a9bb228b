"""Functions in fresh processes: every way in which one ends, and that it never disturbs another."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelexport.processes import Ending, ProcessLimits, ProcessPool

TASKS = "tests.support.process_tasks"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool() as started:
        yield started


def is_running(process: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def wait_for_file(path: Path) -> str:
    for _ in range(200):
        if path.is_file() and path.read_text(encoding="ascii"):
            return path.read_text(encoding="ascii")
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written")


def wait_for_end(process: int) -> bool:
    for _ in range(200):
        if not is_running(process):
            return True
        time.sleep(0.05)
    return False


def test_result_comes_from_another_process_without_torch_and_its_output_is_in_the_log(
    pool: ProcessPool, tmp_path: Path
) -> None:
    outcome = pool.run(f"{TASKS}:double", 21, log=tmp_path / "log")
    assert outcome.ending is Ending.RETURNED
    assert outcome.value["double"] == 42
    assert outcome.value["process"] != os.getpid()
    assert not outcome.value["torch"]
    assert (tmp_path / "log").read_text(encoding="utf-8") == "doubled\n"
    assert outcome.peak_memory_bytes > 2**20


def test_exception_has_class_message_in_one_line_and_causes(pool: ProcessPool) -> None:
    outcome = pool.run(f"{TASKS}:fail", "x")
    assert outcome.ending is Ending.RAISED
    assert outcome.error is not None
    assert (outcome.error.class_name, outcome.error.message) == ("ValueError", "first line second line of x")
    assert outcome.error.causes[0][0] == "KeyError"
    assert "process_tasks.py" in outcome.error.traceback


def test_exception_whose_message_cannot_be_shown_is_raised_and_not_a_crash(pool: ProcessPool) -> None:
    outcome = pool.run(f"{TASKS}:fail_without_message", None)
    assert outcome.ending is Ending.RAISED
    assert outcome.error is not None
    assert outcome.error.class_name == "WithoutMessageError"
    assert outcome.error.message == "(its message cannot be shown: RuntimeError)"
    assert "fail_without_message" in outcome.error.traceback


@pytest.mark.parametrize(
    ("task", "payload", "ending", "detail"),
    [
        ("crash", "SIGSEGV", Ending.CRASHED, "SIGSEGV"),
        ("crash", "SIGABRT", Ending.CRASHED, "SIGABRT"),
        ("crash", "SIGKILL", Ending.KILLED, "killed by another process (SIGKILL)"),
        ("leave", 3, Ending.CRASHED, "exit code 3"),
        ("leave", 0, Ending.CRASHED, "exit code 0"),
        ("say_bad_alloc", None, Ending.OUT_OF_MEMORY, "out of memory (SIGABRT)"),
        ("eat_memory", None, Ending.OUT_OF_MEMORY, "out of memory"),
        ("return_object", None, Ending.RAISED, ""),
        ("spin", None, Ending.TIMED_OUT, "timed out after 1 s of CPU time"),
    ],
)
def test_end_of_a_process_has_a_class(
    pool: ProcessPool, tmp_path: Path, task: str, payload: object, ending: Ending, detail: str
) -> None:
    limits = ProcessLimits(seconds=60, cpu_seconds=1 if task == "spin" else None, memory_bytes=512 * 2**20)
    outcome = pool.run(f"{TASKS}:{task}", payload, limits, tmp_path / "log")
    assert (outcome.ending, outcome.detail) == (ending, detail)
    assert outcome.peak_memory_bytes < 600 * 2**20


def test_process_that_takes_too_long_ends_with_the_processes_that_it_started(pool: ProcessPool, tmp_path: Path) -> None:
    outcome = pool.run(f"{TASKS}:wait_forever", str(tmp_path / "child"), ProcessLimits(seconds=1.5))
    assert (outcome.ending, outcome.detail) == (Ending.TIMED_OUT, "timed out after 1.5 s")
    assert wait_for_end(int(wait_for_file(tmp_path / "child")))


def test_server_that_is_killed_ends_its_functions_and_is_started_again(tmp_path: Path) -> None:
    with ProcessPool() as pool:
        found: list[Ending] = []
        thread = threading.Thread(
            target=lambda: found.append(pool.run(f"{TASKS}:wait_forever", str(tmp_path / "child")).ending)
        )
        thread.start()
        wait_for_file(tmp_path / "child")
        server = pool._server
        assert server is not None
        os.kill(server._process.pid, signal.SIGKILL)
        thread.join(20)
        assert found == [Ending.KILLED]
        assert pool.run(f"{TASKS}:double", 1).ending is Ending.RETURNED


def test_stop_ends_what_runs_and_starts_nothing_else(tmp_path: Path) -> None:
    with ProcessPool() as pool:
        found: list[Ending] = []
        thread = threading.Thread(
            target=lambda: found.append(pool.run(f"{TASKS}:wait_forever", str(tmp_path / "child")).ending)
        )
        thread.start()
        child = int(wait_for_file(tmp_path / "child"))
        pool.stop_all()
        thread.join(20)
        assert found == [Ending.STOPPED]
        assert wait_for_end(child)
        assert pool.run(f"{TASKS}:double", 1).ending is Ending.STOPPED


def test_what_the_server_imported_is_there_and_what_a_function_changes_is_gone_with_it() -> None:
    with ProcessPool(f"{TASKS}:import_json_tool") as pool:
        assert [pool.run(f"{TASKS}:has_json_tool", None).value for _ in range(2)] == [True, True]
