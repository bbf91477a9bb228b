"""Profiles in the formats of other tools, checked by what those tools accept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from tests.unit.profiling.conftest import Profiler

from modelexport.profiling import OVERHEAD_NAME, as_collapsed, as_speedscope, as_trace

DATA = Path(__file__).parents[2] / "data"


def test_speedscope_accepts_its_format_and_weights_are_the_session(profiled: Profiler) -> None:
    report = profiled()
    content = json.loads(json.dumps(as_speedscope(report)))
    schema = json.loads((DATA / "speedscope/file-format-schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(content)
    (profile,) = content["profiles"]
    assert len(profile["samples"]) == len(profile["weights"]) == len(report.kernels) + 1
    assert sum(profile["weights"]) == pytest.approx(report.session.mean)
    assert {frame for sample in profile["samples"] for frame in sample} == set(range(len(content["shared"]["frames"])))


def parse_collapsed(text: str) -> dict[tuple[str, ...], int]:
    """As flamegraph.pl does: the number after the last space of a line, and frames separated by semicolons."""
    found: dict[tuple[str, ...], int] = {}
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        assert count.isdecimal()
        assert stack
        key = tuple(stack.split(";"))
        found[key] = found.get(key, 0) + int(count)
    return found


def test_collapsed_stacks_are_the_calls_around_each_kernel(profiled: Profiler) -> None:
    report = profiled()
    found = parse_collapsed(as_collapsed(report))
    assert sum(found.values()) == pytest.approx(report.session.mean * 1e9, rel=1e-3)
    assert {stack[0] for stack in found} == {"BertModel", OVERHEAD_NAME}
    assert any(stack[:3] == ("BertModel", "encoder: BertEncoder", "layer.0: BertLayer") for stack in found)


def test_semicolons_and_line_breaks_in_names_do_not_break_collapsed_stacks(profiled: Profiler) -> None:
    report = profiled()
    odd = msgspec.structs.replace(report.kernels[0], name="a;b\nc 7")
    changed = msgspec.structs.replace(report, kernels=(odd, *report.kernels[1:]))
    assert len(as_collapsed(changed).splitlines()) == len(report.kernels) + 1
    assert any(stack[-1] == f"{odd.op} a:b c 7" for stack in parse_collapsed(as_collapsed(changed)))


def check_trace_events(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules of the Trace Event Format for complete events, and that slices of a thread nest, as viewers require."""
    assert set(content) <= {"traceEvents", "displayTimeUnit"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    slices = []
    for event in content["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= set(event)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        slices.append(event)
    open_ends: list[float] = []
    for event in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
        while open_ends and open_ends[-1] <= event["ts"] + 1e-6:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + 1e-6
        open_ends.append(end)
    return slices


@pytest.mark.parametrize("name", ["bert", "cond"])
def test_trace_has_every_kernel_inside_a_slice_of_its_call(profiled: Profiler, name: str) -> None:
    report = profiled(name)
    slices = check_trace_events(json.loads(json.dumps(as_trace(report))))
    kernels = [event for event in slices if event["cat"] == "kernel"]
    modules = [event for event in slices if event["cat"] == "module"]
    assert sorted(event["args"]["node"] for event in kernels) == sorted(
        report.kernels[one.kernel].node for one in report.timeline
    )
    nested = {k.node for k in report.kernels if "/" in k.node}
    for event in kernels:
        around = [m["args"]["call"] for m in modules if _contains(m, event)]
        assert event["args"]["node"] in nested or event["args"]["call"] in around


def _contains(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= inner["ts"] + 1e-6 and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6)


def test_trace_of_a_measurement_without_a_timeline_has_the_means_one_after_another(profiled: Profiler) -> None:
    report = msgspec.structs.replace(profiled(), timeline=())
    slices = check_trace_events(as_trace(report))
    assert sum(event["cat"] == "kernel" for event in slices) == len(report.kernels)
