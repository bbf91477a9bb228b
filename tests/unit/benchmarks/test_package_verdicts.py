"""What the measurement of other packages concludes: of records, of ranges in notes, and of files run at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.package_model import PackageModel, floats
from benchmarks.package_runs import difference, run_file
from benchmarks.package_verdicts import Kind, missed, page, verdict
from torch import nn

EXAMPLE = {"sizes": {}, "outcome": "equal", "detail": ""}


def run(outcome: str, **sizes: int) -> dict[str, Any]:
    return {"sizes": sizes, "outcome": outcome, "detail": "off by 1" if outcome == "wrong" else ""}


def record(
    *runs: dict[str, Any], check: str = "equal", notes: tuple[str, ...] = (), **fixed: list[str]
) -> dict[str, Any]:
    free = [dimension for dimension in ("batch", "time") if dimension not in fixed]
    ours = {"check": check, "says": "says this", "notes": list(notes), "exporter": "dynamo", "seconds": 1.0, "cpu": 1.0}
    found = {"free": free, "fixed": fixed, "runs": [EXAMPLE, *runs]}
    return {"name": "a:b", "package": "a", "ours": {"value": ours}, "runs": {"value": found}}


def plain(named: list[str], *outcomes: str, free: list[str] | None = None) -> dict[str, Any]:
    runs = {"free": named if free is None else free, "runs": [EXAMPLE, *map(run, outcomes)]}
    return {"exporter": "dynamo", "named": named, "export": {"value": {"cpu": 2.0}}, "runs": {"value": runs}}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (record(run("equal", time=7)), Kind.EQUAL),
        (record(run("equal", time=7), run("refused", time=1)), Kind.EQUAL),
        (record(run("outside", time=40), run("equal", time=7)), Kind.RANGE_SAID),
        (record(run("outside", time=40), run("wrong", time=7)), Kind.WRONG),
        (record(run("wrong", time=7), check="different"), Kind.NOT_CALLED_RIGHT),
        (record(run("equal", batch=3), time=["x:2"], notes=("torch cannot export x:2",)), Kind.FIXED_AND_SAID),
        (record(time=["x:2"], batch=["x:0"], notes=("no axis is dynamic",)), Kind.FIXED_AND_SAID),
        (record(run("equal", batch=3), time=["x:2"], notes=("x:21 and max:2 are fixed",)), Kind.FIXED_UNSAID),
        (record(run("equal", batch=3), time=["x:2"]), Kind.FIXED_UNSAID),
        (record(run("wrong", batch=3), time=["x:2"], notes=("x:2 is fixed",)), Kind.WRONG),
        (record(run("refused", time=7), run("refused", time=9)), Kind.NOT_SHOWN),
        ({**record(run("equal", time=7)), "pytorch": {"value": ["", "values are not finite"]}}, Kind.NOT_SHOWN),
        ({"name": "a:b", "ours": {"error": "ValueError: no"}}, Kind.NOT_EXPORTED),
        ({**record(), "runs": {"error": "ProcessDied: SIGSEGV"}}, Kind.WRONG),
    ],
)
def test_verdict(found: dict[str, Any], kind: Kind) -> None:
    assert verdict(found).kind is kind


def test_axis_that_plain_torch_frees_when_named_is_missed_if_ours_is_fixed() -> None:
    found = record(run("equal", batch=3), time=["x:2"])
    assert missed({**found, "plain": [plain(["batch"], "equal"), plain(["time"], "equal")]}) == ["time"]
    assert not missed({**found, "plain": [plain(["batch", "time"], "equal", "wrong"), plain(["time"], "refused")]})
    assert not missed({**found, "plain": [plain(["time"], "equal", free=[])]})


def test_page_counts_verdicts_and_shows_what_ours_does_not_free_in_bold() -> None:
    found = {**record(run("equal", batch=3), time=["x:2"]), "plain": [plain(["batch", "time"], "equal")]}
    text = page([found], [], {"a": "1.2"})
    assert f"| {Kind.FIXED_UNSAID} | 1 |" in text
    assert "| a 1.2 | b |  | batch | batch, **time** |" in text
    assert "| 0.50 |" in text


def test_outputs_are_compared_by_position_count_type_shape_and_value() -> None:
    one, two = np.zeros(2, np.float32), np.array([1.0, 2.0], np.float32)
    assert difference([one, two], [one, two * (1 + 1e-6)]) == ""
    assert "off by 2" in difference([one, two], [two, one])
    assert "1 outputs, and PyTorch returns 2" in difference([one], [one, two])
    assert "int64" in difference([one], [one.astype(np.int64)])
    assert "1 of 2 values" in difference([np.array([1, 2])], [np.array([1, 3])])
    assert "off by nan" in difference([two * np.nan], [two])


class _Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(1) if x.shape[1] <= 32 else x.sigmoid()


def _traced(path: Path, axes: dict[int, str]) -> PackageModel:
    """A model that computes something else from length 33 on, and a file without that branch."""
    sizes = ((2, 16), (1, 8), (3, 40), (2, 30))
    spec = PackageModel("a", "branch", "", _Branch, (floats("batch time"),), "batch time", sizes)
    inputs = spec.args(spec.example())
    torch.onnx.export(spec.model(), inputs, str(path), dynamo=False, input_names=["x"], dynamic_axes={"x": axes})
    return spec


@pytest.mark.filterwarnings("ignore")
def test_file_is_wrong_at_a_size_that_it_claims_unless_a_range_excludes_it(tmp_path: Path) -> None:
    spec = _traced(tmp_path / "a.onnx", {0: "batch", 1: "time"})
    found = run_file(spec, tmp_path / "a.onnx", {})
    assert [each["outcome"] for each in found["runs"]] == ["equal", "equal", "wrong", "equal"]
    assert found["free"] == ["batch", "time"]
    for axis in ("x:1", "time"):
        found = run_file(spec, tmp_path / "a.onnx", {axis: [2, 32]})
        assert [each["outcome"] for each in found["runs"]] == ["equal", "equal", "outside", "equal"]


@pytest.mark.filterwarnings("ignore")
def test_axis_of_fixed_size_keeps_it_and_an_axis_that_nobody_named_is_tried_too(tmp_path: Path) -> None:
    spec = _traced(tmp_path / "a.onnx", {1: "time"})
    found = run_file(spec, tmp_path / "a.onnx", {})
    assert found["fixed"] == {"batch": ["x:0"]}
    assert [each["sizes"] for each in found["runs"]] == [{}, {"time": 8}, {"time": 40}, {"time": 30}]
    unnamed = PackageModel("a", "branch", "", _Branch, (floats("batch 16"),), "batch", ((2,), (1,), (3,), (4,)))
    found = run_file(unnamed, tmp_path / "a.onnx", {})
    assert [each["sizes"] for each in found["runs"]] == [{}, {"time": 17}, {"time": 32}, {"time": 15}]
