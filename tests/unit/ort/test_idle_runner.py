"""One process of onnxruntime is kept between exports, and never one that would answer in another way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.limits import RunLimits
from modelexport.ort import Runner
from modelexport.ort.idle_runner import IdleRunner

_LIMITS = RunLimits(seconds=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(runner: Runner, path: Path) -> int:
    """Run the file, and give the id of the process that did."""
    _, found = runner.run_file(path, {"x": np.ones(2, np.float32)}, ["y"])
    assert found["y"].tolist() == [-1, -1]
    process = runner._process
    assert process is not None
    return process.pid


def test_the_process_is_used_again_unless_something_differs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = IdleRunner()
    runner = idle.take(_LIMITS, 1)
    first = run(runner, path)
    idle.keep(runner)
    runner = idle.take(_LIMITS, 1)
    assert run(runner, path) == first
    idle.keep(runner)
    for limits, threads in ((RunLimits(seconds=50), 1), (RunLimits(seconds=50), 2)):
        runner = idle.take(limits, threads)
        second = run(runner, path)
        assert second != first
        idle.keep(runner)
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    runner = idle.take(RunLimits(seconds=50), 2)
    assert run(runner, path) != second
    idle.keep(runner)
    idle.close()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def test_a_process_that_ended_while_it_waited_is_replaced(path: Path) -> None:
    idle = IdleRunner()
    runner = idle.take(_LIMITS, 1)
    first = run(runner, path)
    idle.keep(runner)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    runner = idle.take(_LIMITS, 1)
    assert run(runner, path) != first
    idle.keep(runner)
    idle.close()


def test_two_exports_at_once_have_a_process_each(path: Path) -> None:
    idle = IdleRunner()
    one, two = idle.take(_LIMITS, 1), idle.take(_LIMITS, 1)
    assert run(one, path) != run(two, path)
    idle.keep(one)
    idle.keep(two)
    assert one._process is None
    idle.close()
