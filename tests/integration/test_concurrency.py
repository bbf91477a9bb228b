"""Exports side by side give the files they give one after the other."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.support import zoo
from torch import nn

import modelexport

pytestmark = pytest.mark.integration
_JOBS = [("cnn", "fx"), ("shared_block", "fx"), ("shared_block", "htp"), ("cnn", "htp")]


def _export(job: tuple[str, str, str], example: zoo.ExampleModel | None = None) -> dict[str, bytes]:
    name, strategy, folder = job
    example = example or zoo.build(name)
    result = modelexport.export_model(example.model, example.inputs, Path(folder) / f"{name}.onnx", strategy=strategy)
    return {path.name: path.read_bytes() for path in result.files}


def _jobs(tmp_path: Path, label: str, copies: int = 1) -> list[tuple[str, str, str]]:
    jobs = []
    for number, (name, strategy) in enumerate(_JOBS * copies):
        folder = tmp_path / f"{label}{number}"
        folder.mkdir()
        jobs.append((name, strategy, str(folder)))
    return jobs


@pytest.mark.xdist_group("concurrency")
def test_threads_give_the_same_files_as_one_after_the_other(tmp_path: Path) -> None:
    expected = [_export(job) for job in _jobs(tmp_path, "alone")]
    jobs = _jobs(tmp_path, "thread", copies=2)
    # Made here: torch's random numbers are shared by all threads.
    examples = [zoo.build(name) for name, *_ in jobs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(_export, jobs, examples))
    assert found == expected * 2


class Served(nn.Module):
    """A model that other threads run as well, at a moment that is the same in each trace."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.lin(x)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(self.act, SERVED).result()
        assert torch.equal(served, nn.functional.gelu(SERVED)), "the results of other threads are their own"
        return self.act(h) + self.act(x)


SERVED = torch.linspace(-2, 2, 9)


@pytest.mark.parametrize("strategy", ["fx", "htp", "usage_based"])
def test_calls_of_other_threads_are_not_calls_of_the_export(strategy: str, tmp_path: Path) -> None:
    path, model, inputs = tmp_path / "m.onnx", Served(), torch.randn(2, 4)
    result = modelexport.export_model(model, inputs, path, strategy=strategy)
    assert not result.check.is_wrong
    assert {call.id for call in result.document.calls} == {"", "lin", "act", "act@1"}
    report = modelexport.verify_modules(path, model, inputs)
    assert {str(record.call) for record in report.calls} == {"", "lin", "act", "act@1"}


@pytest.mark.xdist_group("concurrency")
def test_processes_give_the_same_files_as_one_after_the_other(tmp_path: Path) -> None:
    expected = [_export(job) for job in _jobs(tmp_path, "alone")]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(_export, _jobs(tmp_path, "process")))
    assert found == expected
