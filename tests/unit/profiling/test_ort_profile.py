"""Profiles that onnxruntime wrote: own times of nodes with subgraphs, runs, and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelexport.errors import FileFormatError
from modelexport.profiling.ort_profile import OrtProfile, read_ort_profile

# An event of a run of the main graph or of a subgraph, as onnxruntime 1.31 names it.
GRAPH = "SequentialExecutor::Execute"


def event(name: str, ts: int, dur: int, **args: str) -> dict[str, Any]:
    return {"cat": "Node", "pid": 1, "tid": 1, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": args}


def kernel(name: str, ts: int, dur: int, **args: str) -> dict[str, Any]:
    return event(f"{name}_kernel_time", ts, dur, op_name=name, provider="CPUExecutionProvider", **args)


def run(start: int, slow: int = 0) -> list[dict[str, Any]]:
    """A product, then a loop of two iterations, each an addition: the order of onnxruntime, inner events first."""
    return [
        kernel("MatMul", start, 100 + slow),
        kernel("Add", start + 210 + slow, 20),
        event(GRAPH, start + 205 + slow, 30),
        kernel("Add", start + 250 + slow, 30),
        event(GRAPH, start + 245 + slow, 40),
        kernel("Loop", start + 200 + slow, 120),
        event(GRAPH, start, 330 + slow),
        event("model_run", start, 400 + slow),
    ]


def read(folder: Path, events: list[dict[str, Any]], **options: int) -> OrtProfile:
    path = folder / "profile.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    return read_ort_profile(path, **options)


def test_time_of_a_loop_does_not_include_its_subgraph(tmp_path: Path) -> None:
    found = read(tmp_path, [event("session_initialization", 0, 500), *run(1000)])
    times = {kernel.name: kernel.seconds for kernel in found.measurement.kernels}
    assert times["MatMul"] == pytest.approx([100e-6])
    assert times["Add"] == pytest.approx([50e-6])
    assert times["Loop"] == pytest.approx([70e-6])
    assert found.measurement.session == pytest.approx([400e-6])


def test_kernel_of_a_subgraph_knows_the_node_around_it_and_how_often_it_ran(tmp_path: Path) -> None:
    found = read(tmp_path, run(1000))
    names = [kernel.name for kernel in found.measurement.kernels]
    assert found.parents[names.index("Add")] == names.index("Loop")
    assert found.parents[names.index("Loop")] is None
    assert found.measurement.kernels[names.index("Add")].executions == 2
    assert len(found.measurement.timeline) == 4


def test_warm_up_does_not_count_and_the_timeline_is_that_of_the_median_run(tmp_path: Path) -> None:
    found = read(tmp_path, [*run(0, 9000), *run(20_000, 100), *run(30_000, 300), *run(40_000, 200)], warmup=1)
    assert found.measurement.kernels[0].seconds == pytest.approx([200e-6, 400e-6, 300e-6])
    assert found.measurement.timeline[0].seconds == pytest.approx(300e-6)


def test_temporary_memory_is_what_a_new_peak_exceeds_the_memory_before_and_after_by(tmp_path: Path) -> None:
    events = [
        kernel("A", 0, 1, mem_bytes_in_use="100", mem_in_use_peak="900"),
        kernel("B", 2, 1, mem_bytes_in_use="200", mem_in_use_peak="1000"),
        kernel("C", 4, 1, mem_bytes_in_use="200", mem_in_use_peak="1000"),
        event(GRAPH, 0, 6),
        event("model_run", 0, 7),
    ]
    found = read(tmp_path, events).measurement.kernels
    assert [kernel.temporary_bytes for kernel in found] == [0, 800, 0]


def test_profile_without_memory_has_none(tmp_path: Path) -> None:
    found = read(tmp_path, run(0)).measurement.kernels[0]
    assert (found.temporary_bytes, found.output_bytes) == (None, None)


@pytest.mark.parametrize("text", ["{}", "[", '[{"name": 1}]', "[]"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=r"profile\.json"):
        read_ort_profile(path)
