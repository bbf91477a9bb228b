"""Rows of a report: by call, module, class and operator, folded, selected and sorted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from tests.unit.profiling.conftest import Profiler

from modelexport.errors import FileFormatError, InputError
from modelexport.profiling import profile_schema, read_profile
from modelexport.profiling.report import ProfileReport

GROUPINGS = ("call", "module", "class", "op")


@pytest.mark.parametrize("by", GROUPINGS)
def test_own_times_of_all_rows_and_the_overhead_are_the_session(profiled: Profiler, by: str) -> None:
    report = profiled()
    rows = report.rows(by)
    assert sum(row.share for row in rows) + report.overhead_share == pytest.approx(1)
    assert sum(row.own.mean for row in rows) + report.overhead.mean == pytest.approx(report.session.mean)
    assert sum(row.nodes for row in rows) == len(report.kernels)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_deeper_modules_count_for_those_around_them(profiled: Profiler, depth: int) -> None:
    report = profiled()
    rows = report.rows("module", depth=depth)
    assert max(row.name.count(".") + 1 for row in rows if row.name != "(root)") <= depth if depth else True
    assert sum(row.share for row in rows) + report.overhead_share == pytest.approx(1)
    assert next(row for row in rows if row.name == "(root)").total == report[""].total
    if depth == 1:
        # Its own time is now all of its total, which counts once.
        encoder = next(row for row in rows if row.name == "encoder")
        assert encoder.total.seconds == pytest.approx(report["encoder"].total.seconds)
        assert encoder.own.seconds == pytest.approx(encoder.total.seconds)
    if depth == 0:
        assert [row.name for row in rows] == ["(root)"]


def test_class_counts_time_of_nested_calls_once(profiled: Profiler) -> None:
    report = profiled()
    rows = {row.name: row for row in report.rows("class")}
    layers = [call for call in report.calls if call.class_name == "BertLayer"]
    assert rows["BertLayer"].calls == len(layers) == 2
    assert rows["BertLayer"].total.mean == pytest.approx(sum(layer.total.mean for layer in layers))
    assert all(row.total_share <= 1 for row in rows.values())


@pytest.mark.parametrize("sort", ["own", "total", "memory"])
def test_rows_are_sorted(profiled: Profiler, sort: str) -> None:
    rows = profiled().rows(sort=sort)
    if sort == "memory":
        keys: list[float] = [sum(v or 0 for v in msgspec.structs.asdict(row.memory).values()) for row in rows]
    else:
        keys = [getattr(row, sort).median for row in rows]
    assert keys == sorted(keys, reverse=True)


def test_selected_rows_are_the_calls_and_those_inside_of_them(profiled: Profiler) -> None:
    whole, part = profiled(), profiled(select="encoder.layer.1")
    assert part.selected is not None
    assert {row.name for row in part.rows()} <= set(part.selected)
    assert all(name.startswith("encoder.layer.1") for name in part.selected)
    assert sum(row.nodes for row in part.rows()) == sum(
        kernel.call.startswith("encoder.layer.1") for kernel in part.kernels
    )
    assert len(part.calls) == len(whole.calls)


def test_unknown_grouping_is_refused(profiled: Profiler) -> None:
    with pytest.raises(InputError, match="is not one of call, module, class, op"):
        profiled().rows("layer")


def test_json_matches_its_schema_and_is_read_back(profiled: Profiler, tmp_path: Path) -> None:
    report = profiled()
    jsonschema.Draft202012Validator(profile_schema()).validate(json.loads(json.dumps(report.as_dict())))
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(report.as_dict()), encoding="utf-8")
    assert read_profile(path) == report


def test_other_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"file": 3}', encoding="utf-8")
    with pytest.raises(FileFormatError, match="not written by modelexport profile"):
        read_profile(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_profile(tmp_path / "missing.json")
    with pytest.raises(InputError, match="by the path of its JSON file, not as int"):
        read_profile(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a file"):
        read_profile("/dev/zero")


def _changed(report: ProfileReport, change: Callable[[dict[str, Any]], object], path: Path) -> Path:
    content = json.loads(json.dumps(report.as_dict()))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["session"].update(seconds=[]), "the same number of runs"),
        (lambda content: content["calls"][0]["own"]["seconds"].append(1.0), "the same number of runs"),
        (lambda content: content["kernels"][0].update(seconds=[]), "the same number of runs"),
        (lambda content: content["kernels"][0].update(call="nowhere"), "a call that is not there"),
        (lambda content: content["calls"][1].update(parent=content["calls"][1]["id"]), "is not before it"),
        (lambda content: content["calls"].append(content["calls"][0]), "is there twice"),
        (lambda content: content.update(timeline=[[99, 0.0, 1.0]]), "the timeline"),
        (lambda content: content["session"]["seconds"].__setitem__(0, 1e308), "longer than a year"),
    ],
)
def test_profile_that_contradicts_itself_is_refused(
    profiled: Profiler, change: Callable[[dict[str, Any]], object], words: str, tmp_path: Path
) -> None:
    path = _changed(profiled(), change, tmp_path / "profile.json")
    with pytest.raises(FileFormatError, match=words):
        read_profile(path)


def test_call_that_is_not_in_the_profile_is_a_key_error(profiled: Profiler) -> None:
    report = profiled()
    with pytest.raises(KeyError):
        report["nowhere"]


def test_notebook_view_lists_the_slowest_calls(profiled: Profiler) -> None:
    report = profiled()
    view = report._repr_html_()  # type: ignore[attr-defined]  # what notebooks call
    assert report.rows()[0].name in view
    assert "own ms" in view


@pytest.mark.parametrize("by", ["call", "module", "class", "op"])
def test_data_frame_has_a_line_for_each_row(profiled: Profiler, by: str) -> None:
    frame, rows = profiled().to_pandas(by), profiled().rows(by)
    assert list(frame["name"]) == [row.name for row in rows]
    assert list(frame["own"]) == [row.own.median for row in rows]
    assert frame["nodes"].sum() == len(profiled().kernels)
    # Numbers are numbers, so that they can be summed, sorted and plotted.
    assert {frame[name].dtype.kind for name in ("own", "total_p90", "share", "nodes", "parameter_bytes")} <= set("fi")
    assert frame.set_index("name").loc[rows[0].name, "class"] == rows[0].class_name


def test_data_frame_without_pandas_is_refused(profiled: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    # What Python does where a package is not installed.
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        profiled().to_pandas()


def test_medians_do_not_hide_what_they_do_not_add_up_to(profiled: Profiler) -> None:
    report: ProfileReport = profiled()
    added = sum(call.own.median for call in report.calls) + report.overhead.median
    assert report.unexplained == pytest.approx(1 - added / report.session.median)
    exact = np.sum([call.own.seconds for call in report.calls], axis=0) + report.overhead.seconds
    assert exact == pytest.approx(report.session.seconds)
