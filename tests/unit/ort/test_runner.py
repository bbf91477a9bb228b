"""onnxruntime in a child process: results, errors, crashes, limits, and the end of the parent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import helper
from tests.support.hostile_graphs import DOUBLE, endless_loop, function_chain, huge_tensor, model

from modelexport.errors import InputError, OnnxRunError
from modelexport.limits import NO_RUN_LIMITS, RunLimits
from modelexport.ort import worker
from modelexport.ort.runner import Runner

ONE = {"x": np.ones(1, np.float32)}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as shared:
        yield shared


def run(runner: Runner, graph: onnx.ModelProto, feeds: dict[str, np.ndarray] = ONE) -> dict[str, np.ndarray]:
    return dict(runner.run([graph.SerializeToString()], feeds, ["y"]))


def child_of(runner: Runner) -> int:
    return runner._started().pid


def test_graphs_run_one_after_the_other_in_one_process(runner: Runner) -> None:
    started = child_of(runner)
    for numbers in ([1, 2], [3.5], []):
        x = np.array(numbers, np.float32)
        found = run(runner, model(DOUBLE), {"x": x, "not an input": x})
        assert list(found) == ["y"]
        assert np.array_equal(found["y"], x * 2)
        assert found["y"].dtype == np.float32
    assert child_of(runner) == started


def test_rejection_is_an_error_with_the_reason_and_the_process_goes_on(runner: Runner) -> None:
    started = child_of(runner)
    with pytest.raises(OnnxRunError, match="NoSuchOperation"):
        run(runner, model(helper.make_node("NoSuchOperation", ["x"], ["y"])))
    assert run(runner, model(DOUBLE))["y"] == [2]
    assert child_of(runner) == started


def test_crash_is_an_error_and_the_next_graph_runs() -> None:
    with Runner() as runner:
        assert run(runner, function_chain(3))["y"] == [1]
        with pytest.raises(OnnxRunError, match=r"onnxruntime crashed \(SIGSEGV"):
            run(runner, function_chain(5000))
        assert run(runner, model(DOUBLE))["y"] == [2]


def test_what_a_crashed_process_printed_last_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "import os, sys\nsys.stderr.write('x' * 2**20 + '\\nout of luck\\n')\nsys.stderr.flush()\nos._exit(3)\n"
    (tmp_path / "onnxruntime.py").write_text(printed)
    monkeypatch.syspath_prepend(tmp_path)
    with Runner() as runner, pytest.raises(OnnxRunError, match=r"crashed \(exit code 3; out of luck\)"):
        run(runner, model(DOUBLE))


def test_endless_loop_times_out_and_the_next_graph_runs() -> None:
    with Runner(RunLimits(seconds=3)) as runner:
        with pytest.raises(OnnxRunError, match="onnxruntime timed out after 3 s"):
            run(runner, endless_loop())
        assert run(runner, model(DOUBLE))["y"] == [2]


def test_graphs_are_not_run_any_more_after_three_timeouts() -> None:
    with Runner(RunLimits(seconds=1)) as runner:
        for _ in range(3):
            with pytest.raises(OnnxRunError, match="timed out after 1 s"):
                run(runner, endless_loop())
        start = time.monotonic()
        with pytest.raises(OnnxRunError, match="already timed out 3 times"):
            run(runner, endless_loop())
        assert time.monotonic() - start < 1


def test_consumer_may_take_longer_than_the_time_limit() -> None:
    with Runner(RunLimits(seconds=3)) as runner:
        graph = model(helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"]))
        graph.graph.output.append(onnx.ValueInfoProto(name="a"))
        feeds = {"x": np.ones(1 << 20, np.float32)}
        found = []
        for name, _ in runner.run([graph.SerializeToString()], feeds, ["y", "a"]):
            found.append(name)
            time.sleep(2)
        assert found == ["y", "a"]


def test_work_during_a_run_may_take_longer_than_the_time_limit(tmp_path: Path) -> None:
    path, done = tmp_path / "double.onnx", []
    onnx.save(model(DOUBLE), path)

    def work() -> None:
        time.sleep(2.5)
        done.append(True)

    with Runner(RunLimits(seconds=2)) as runner:
        runner.start()
        started = child_of(runner)
        for meanwhile in (work, None):
            found, outputs = runner.run_file(path, ONE, ["y"], meanwhile=meanwhile)
            assert (found.problem, outputs["y"]) == ("", [2])
        assert child_of(runner) == started
    assert done == [True]


def test_interrupted_work_during_a_run_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "double.onnx"
    onnx.save(model(DOUBLE), path)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Runner() as runner:
        started = child_of(runner)
        with pytest.raises(KeyboardInterrupt):
            runner.run_file(path, ONE, ["y"], meanwhile=interrupt)
        assert not psutil.pid_exists(started)
        assert runner.run_file(path, ONE, ["y"])[1]["y"] == [2]


def test_tensor_beyond_the_memory_limit_is_an_error_and_this_process_stays_small() -> None:
    own = psutil.Process()
    before = own.memory_info().rss
    with Runner(RunLimits(memory_bytes=2**30)) as runner:
        with pytest.raises(OnnxRunError, match="ran out of memory, its limit is 1 GiB"):
            run(runner, huge_tensor())
        assert run(runner, model(DOUBLE))["y"] == [2]
    assert own.memory_info().rss - before < 2**28


@pytest.mark.parametrize("seconds", [float("inf"), 1e300], ids=str)
def test_time_limit_beyond_what_threads_can_wait_is_none(seconds: float) -> None:
    with Runner(RunLimits(seconds=seconds)) as runner:
        assert run(runner, model(DOUBLE))["y"] == [2]


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"seconds": float("nan")}, {"memory_bytes": -1}], ids=str)
def test_limit_that_is_not_positive_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(InputError, match="a limit is a positive number"):
        RunLimits(**limits)  # type: ignore[arg-type]


def test_answer_that_was_not_read_to_its_end_does_not_reach_the_next_request(runner: Runner) -> None:
    graph = model(helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"]))
    graph.graph.output.append(onnx.ValueInfoProto(name="a"))
    results = runner.run([graph.SerializeToString()], {"x": np.ones(1 << 20, np.float32)}, ["y", "a"])
    assert next(results)[0] == "y"
    assert run(runner, model(DOUBLE))["y"] == [2]


@pytest.mark.parametrize(
    "answer",
    [
        {"arrays": [["<f4", [2**40]]], "outputs": [0]},
        {"arrays": [["<f4", [-1]]], "outputs": [0]},
        {"arrays": [["O", [1]]], "outputs": [0]},
        {},
    ],
    ids=["beyond the memory limit", "a negative size", "objects", "no arrays"],
)
def test_answer_that_is_not_one_of_ours_is_an_error(answer: dict[str, object], tmp_path: Path) -> None:
    """A graph may take the process over: what it says is not believed."""
    script = tmp_path / "worker.py"
    source = Path(worker.__file__).read_text(encoding="utf-8")
    sent = "        write_message(answers, *_answer(*requests.get()))\n"
    assert sent in source
    lie = f"        requests.get(); b = {json.dumps(answer).encode()!r}\n"
    lie += "        answers.write(len(b).to_bytes(8, 'little') + b); answers.flush()\n"
    script.write_text(source.replace(sent, lie))
    with pytest.MonkeyPatch.context() as patch, Runner() as runner:
        patch.setattr(worker, "__file__", str(script))
        with pytest.raises(OnnxRunError, match="sent an invalid answer"):
            run(runner, model(DOUBLE))


def test_process_that_was_killed_between_two_requests_is_started_again(runner: Runner) -> None:
    child = psutil.Process(child_of(runner))
    child.kill()
    psutil.wait_procs([child])
    assert run(runner, model(DOUBLE))["y"] == [2]


def test_process_ends_with_the_context() -> None:
    with Runner() as runner:
        run(runner, model(DOUBLE))
        started = child_of(runner)
        os.kill(started, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(started, signal.SIGTERM)


_PARENT = """
import sys, numpy as np
from modelexport.limits import NO_RUN_LIMITS
from modelexport.ort import worker
from modelexport.ort.runner import Runner
worker.__file__ = sys.argv[1]
with Runner(NO_RUN_LIMITS) as runner:
    print(runner._started().pid, flush=True)
    list(runner.run([open(sys.argv[2], "rb").read()], {"x": np.ones(1, np.float32)}, ["y"]))
"""


@pytest.mark.parametrize(
    "other_way",
    ["        os._exit(0)\n", "    end_with_parent(int(parent))\n"],
    ids=["killed by the kernel", "at the end of stdin"],
)
def test_worker_in_an_endless_loop_ends_when_its_parent_is_killed(other_way: str, tmp_path: Path) -> None:
    """By each of the two ways, with the other one taken out."""
    source = Path(worker.__file__).read_text(encoding="utf-8")
    assert source.count(other_way) == 1
    script, endless = tmp_path / "worker.py", tmp_path / "endless.onnx"
    script.write_text(source.replace(other_way, other_way.replace(other_way.strip(), "pass")))
    onnx.save(endless_loop(), endless)
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, script, endless], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        _wait(lambda: child.cpu_times().user > 2, "the loop runs")
    finally:
        parent.kill()
        parent.communicate()
    try:
        _wait(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the worker ends", seconds=20)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _wait(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for: {what}"
        time.sleep(0.1)


def test_missing_onnxruntime_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the import system sees a package that is not there.
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with Runner(NO_RUN_LIMITS) as runner, pytest.raises(InputError, match=r"pip install 'modelexport\[runtime\]'"):
        run(runner, model(DOUBLE))


def test_broken_onnxruntime_is_said_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise OSError('libthing.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with Runner() as runner, pytest.raises(InputError, match=r"cannot be imported \(OSError: libthing"):
        run(runner, model(DOUBLE))
