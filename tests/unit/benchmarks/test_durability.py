"""A small sample of `make durability`, and that it finds a mixed set of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import durability

pytestmark = pytest.mark.integration


def test_sample_of_killed_and_parallel_exports_mixes_no_files(tmp_path: Path) -> None:
    killed, processes, threads = durability.run(4, 2, 2, 2, seed=0, folder=tmp_path)
    assert killed.startswith("4 kills")
    assert ": 0 failures" in processes
    assert ": 0 failures" in threads


def test_mixed_set_is_a_failure(tmp_path: Path) -> None:
    checked = durability.Durability(tmp_path)
    target = tmp_path / "alone" / "own.onnx"
    checked.check(target, "whole")
    assert not checked.failures
    sidecar = target.with_name("own_hierarchy.json")
    sidecar.write_bytes(checked.expected["own.onnx"][0][sidecar.name])
    checked.check(target, "mixed")
    assert "mixed set of files" in checked.failures[0]
