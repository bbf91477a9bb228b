"""Where onnxruntime differs from PyTorch, the page of the sweep names the cause."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import sweep_checks
from benchmarks.sweep_page import page
from tests.support.value_check import computed_by, run_eagerly
from torch import nn

import modelexport


class Masks(nn.Module):
    """Leaves out a part of what it is given, another one each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape) > 0.5)


class Strided(nn.Module):
    """Reads memory that is laid out in another order than the tensor: torch's exporters take it to be in that order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x.view(8, 8).transpose(0, 1)
        return turned.as_strided((8, 4), turned.stride())


def runtime_of(model: nn.Module, path: Path) -> dict[str, Any]:
    x = torch.arange(1.0, 65.0)[None]
    modelexport.export_model(model, (x,), path)
    return sweep_checks.compare_with_pytorch(path, {"x": x.numpy(), "input": x.numpy()}, model, (x,), {})


def page_of(runtime: dict[str, Any]) -> str:
    record = {
        "name": "some:model",
        "source": "some",
        "built": {},
        "forward": {},
        "ours": {"value": {"strategy": "fx", "exporter": "dynamo", "coverage": 1.0}},
        "checks": {"value": {"runtime": runtime}},
    }
    return page([record], {"some": 1})


def test_model_that_is_random_itself_cannot_be_compared(tmp_path: Path) -> None:
    found = runtime_of(Masks(), tmp_path / "masks.onnx")
    assert not found["equal"]
    assert found["random"]
    assert "PyTorch's own results are nondeterministic" in page_of(found)


def test_optimizations_of_the_runtime_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sweep_checks._run

    def off_when_optimized(path: Path, feeds: dict[str, np.ndarray], *, optimized: bool) -> list[Any]:
        return [result + optimized for result in run(path, feeds, optimized=optimized)]

    monkeypatch.setattr(sweep_checks, "_run", off_when_optimized)
    found = runtime_of(nn.Linear(64, 2).eval(), tmp_path / "linear.onnx")
    assert (found["equal"], found["equal_unoptimized"], found["random"]) == (False, True, False)
    assert "off by 1: onnxruntime's own optimizations; without them it is equal" in page_of(found)


def test_call_that_the_exporter_gets_wrong_is_named(tmp_path: Path) -> None:
    found = runtime_of(nn.Sequential(nn.Linear(64, 64), Strided()).eval(), tmp_path / "strided.onnx")
    assert (found["equal"], found["equal_unoptimized"], found["random"]) == (False, False, False)
    assert found["introduced"] == "1"
    assert "introduced by the nodes of `1`" in page_of(found)


def test_what_is_equal_needs_no_cause(tmp_path: Path) -> None:
    found = runtime_of(nn.Linear(64, 2).eval(), tmp_path / "linear.onnx")
    assert found["equal"]
    assert "random" not in found
    assert "onnxruntime is not PyTorch" not in page_of(found)


@functools.cache
def positions(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32) / 7


class Positioned(nn.Module):
    """Computes something in the first of all calls alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + positions(x.shape[-1])


def test_what_was_kept_of_another_call_is_computed_again() -> None:
    model = nn.Sequential(Positioned(), Positioned())
    model(torch.ones(3))
    with sweep_checks.forgotten_results(model):
        results = run_eagerly(model, (torch.ones(3),), {})
    kept = positions(3).numpy()
    assert [call for array, call in results if np.array_equal(array, kept)] == ["0", "1"]


class Rescaled(nn.Module):
    """Writes into the weights of another module, in its first run alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.is_rescaled = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_rescaled:
            with torch.no_grad():
                self.inner.weight.div_(2)
            self.is_rescaled = True
        return self.inner(x)


def test_each_check_gets_the_model_as_it_was_exported(tmp_path: Path) -> None:
    model, x = Rescaled().eval(), torch.rand(3, 8)
    before = model.inner.weight.detach().clone()
    modelexport.export_model(model, (x,), tmp_path / "rescaled.onnx", optimize=False)
    found = sweep_checks.check_export(tmp_path / "rescaled.onnx", model, (x,), {})
    assert found["runtime"]["equal"]
    assert found["contaminated"]["judged"]
    assert not found["contaminated"]["cases"]
    assert not model.is_rescaled
    assert torch.equal(model.inner.weight, before)


class Written(nn.Module):
    """Writes into a part of a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = x * 3
        whole[1:] += 1
        return whole


def test_tensor_that_is_written_in_part_is_computed_by_the_call_that_writes() -> None:
    x = torch.rand(4, 5)
    expected = Written()(x).numpy()
    results = run_eagerly(nn.Sequential(Written(), nn.Flatten(0)), (x,), {})
    assert "0" in computed_by(expected, results)
