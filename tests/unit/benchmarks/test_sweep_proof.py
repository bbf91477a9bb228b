"""The sweep's judge of a file: on other values, at other sizes, and what its page says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from benchmarks.sweep_judge import BAKED, BRANCH, NONDETERMINISM, Call, Judge
from benchmarks.sweep_probes import run_probes
from benchmarks.sweep_proof_page import SizeKind, proof_page, size_verdict
from benchmarks.sweep_sizes import run_sizes
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


class Baked(nn.Module):
    """Reads a value while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.max())


class Branch(nn.Module):
    """Runs other operators for other values."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.float().sin() if ids[0, 0] == 0 else ids.float().cos()


class Masks(nn.Module):
    """Leaves out another part each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape) > 0.5)


class Pair(nn.Module):
    """Returns two results of one shape."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"first": x.sin(), "second": x.cos()}


class Long(nn.Module):
    """Computes something else for long inputs, and takes no other width."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(1) if x.shape[1] < 20 else x.sigmoid()


def exported(model: nn.Module, tensor: torch.Tensor, path: Path, **axes: Any) -> Path:
    torch.onnx.export(model, (tensor,), str(path), dynamo=False, input_names=["x"], **axes)
    return path


X = torch.arange(12.0).reshape(3, 4) / 7


@pytest.mark.parametrize(
    ("model", "tensor", "cause"),
    [
        (Baked(), X - 0.3, BAKED),
        (Branch(), torch.arange(12).reshape(3, 4), BRANCH),
        (Masks(), X, NONDETERMINISM),
    ],
)
def test_difference_on_a_probe_has_its_cause(
    model: nn.Module, tensor: torch.Tensor, cause: str, tmp_path: Path
) -> None:
    found = run_probes(exported(model, tensor, tmp_path / "a.onnx"), model, (tensor,), {})
    assert [run["inputs"] for run in found["runs"]] == ["example", "probe 1", "probe 2"]
    assert {run["cause"] for run in found["runs"][1:] if run["outcome"] == "different"} == {cause}


def test_swapped_outputs_are_different(tmp_path: Path) -> None:
    path = exported(Pair(), X, tmp_path / "a.onnx")
    judge = Judge(path, Pair(), Call((X,), {}))
    assert judge.run(Call((X,), {}), "")["outcome"] == "equal"
    swapped = onnx.load(path)
    outputs = list(swapped.graph.output)
    del swapped.graph.output[:]
    swapped.graph.output.extend(reversed(outputs))
    onnx.save(swapped, path)
    assert Judge(path, Pair(), Call((X,), {})).run(Call((X,), {}), "")["outcome"] == "different"


def record(sizes: dict[str, Any], outcome: str = "equal", notes: tuple[str, ...] = ()) -> dict[str, Any]:
    ours = {"exporter": "dynamo", "variant": "", "specialized": False, "notes": list(notes)}
    check = {"outcome": outcome, "says": "says this"}
    of = {"commit": "abc", "versions": {"torch": "2"}, "date": "2026-01-02"}
    found = {"name": "a:b", "source": "a", "forward": {}, "ours": {"value": {**ours, "check": check}}, "setup": of}
    return {**found, "sizes": {"value": sizes}}


@pytest.mark.parametrize(
    ("ranges", "kind"),
    [({}, SizeKind.WRONG), ({"n": [2, 19, 1, 0]}, SizeKind.RANGE_SAID)],
)
def test_size_that_a_file_claims_and_is_wrong_at(ranges: dict[str, Any], kind: SizeKind, tmp_path: Path) -> None:
    tensor = torch.rand(3, 12)
    path = exported(Long(), tensor, tmp_path / "a.onnx", dynamic_axes={"x": {0: "batch", 1: "n"}})
    found = run_sizes(path, Long(), (tensor,), {}, ranges, ())
    assert found["inputs"] == {"x": ["batch", "n"]}
    assert size_verdict(record(found)).kind is kind


def test_axis_that_is_fixed_must_be_said(tmp_path: Path) -> None:
    tensor = torch.rand(3, 12)
    path = exported(Pair(), tensor, tmp_path / "a.onnx", dynamic_axes={"x": {0: "batch"}})
    found = run_sizes(path, Pair(), (tensor,), {}, {}, ())
    assert found["fixed"] == [{"axis": "x:1", "said": False}]
    assert size_verdict(record(found)).kind is SizeKind.FIXED_UNSAID
    said = run_sizes(path, Pair(), (tensor,), {}, {}, ("x:1 remains fixed",))
    assert size_verdict(record(said)).kind is SizeKind.FIXED_AND_SAID


def test_page_names_differences_and_disagreements() -> None:
    runs = [
        {"inputs": "example", "outcome": "equal", "detail": ""},
        {"inputs": "probe 1", "outcome": "different", "detail": "output 0: off by 3", "cause": BAKED},
    ]
    found = {**record({}), "probes": {"value": {"mapped": "positions", "runs": runs}}}
    text = proof_page(["a:b", "a:c"], {"a:b probes": found}, {"a:c": {"forward": {"error": "no"}}}, 29)
    assert "2 models by seed 29; 1 run no forward pass" in text
    assert "probe 1: **baked value**: output 0: off by 3" in text
    assert "called says this; the judge: probe 1: baked value" in text
