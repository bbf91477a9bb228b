"""A profiled session: the files that it writes, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from modelexport.errors import InputError, OnnxRunError, RunLimitError
from modelexport.limits import RunLimits
from modelexport.ort import ProfiledSession

FEEDS = {"x": np.ones((4, 4), np.float32)}


def write(folder: Path, nodes: str) -> Path:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[4,4] x) => (float[4,4] y) {{ {nodes} }}'
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_session_writes_a_profile_of_all_runs_and_the_graph_that_it_executes(tmp_path: Path) -> None:
    path = write(tmp_path, "a = MatMul(x, x) b = Identity(a) y = Relu(b)")
    with ProfiledSession(path, tmp_path, threads=1) as session:
        # The first inputs are refused, the second are not.
        session.open([{"x": np.ones((3, 4), np.float32)}, FEEDS])
        session.run()
        events = json.loads(session.close().read_text(encoding="utf-8"))
    assert sum(event["name"] == "model_run" for event in events) == 2
    assert session.feeds is FEEDS
    executed = [node.op_type for node in onnx.load(session.executed).graph.node]
    assert "Identity" not in executed
    assert {event["args"]["op_name"] for event in events if event["cat"] == "Node"} == set(executed)


def test_provider_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    path = write(tmp_path, "y = Relu(x)")
    session = ProfiledSession(path, tmp_path, providers=["tensorrt"])
    with session, pytest.raises(InputError, match=r"no provider 'tensorrt' here: it has .*CPUExecutionProvider"):
        session.open([FEEDS])


def test_file_that_onnxruntime_refuses_is_named_with_the_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "y = NoSuchOperator(x)")
    session = ProfiledSession(path, tmp_path)
    with session, pytest.raises(OnnxRunError, match=r"cannot load .*model\.onnx: .*NoSuchOperator"):
        session.open([FEEDS])


def test_limit_of_time_is_that_of_one_run(tmp_path: Path) -> None:
    body = "b (int64 i, bool c, float[4,4] s) => (bool d, float[4,4] t) { d = Identity(c) t = MatMul(s, x) }"
    endless = f"n = Constant<value: tensor = int64 {{9223372036854775807}}>() y = Loop(n, , x) <body = {body}>"
    session = ProfiledSession(write(tmp_path, endless), tmp_path, limits=RunLimits(2.0, None))
    with session, pytest.raises(RunLimitError, match="timed out after 2 s"):
        session.open([FEEDS])
