"""Exports side by side give the files they give one after the other."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support import zoo

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


@pytest.mark.xdist_group("concurrency")
def test_processes_give_the_same_files_as_one_after_the_other(tmp_path: Path) -> None:
    expected = [_export(job) for job in _jobs(tmp_path, "alone")]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(_export, _jobs(tmp_path, "process")))
    assert found == expected
