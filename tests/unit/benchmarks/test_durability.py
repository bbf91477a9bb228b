"""A small sample of `make durability`, and that it finds a mixed set of files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import durability

pytestmark = pytest.mark.integration


def test_sample_of_killed_and_parallel_exports_mixes_no_files() -> None:
    # In a process of its own: it forks, and a test run has threads of other tests.
    counts = ["--kills", "2", "--threads", "2", "--processes", "2", "--exports", "1"]
    command = [sys.executable, "-m", "benchmarks.durability", *counts]
    root = Path(durability.__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    killed, processes, threads = done.stdout.splitlines()
    assert killed.startswith("2 kills")
    assert ": 0 failures" in processes
    assert ": 0 failures" in threads


def test_mixed_set_is_a_failure(tmp_path: Path) -> None:
    checked = durability.Durability(tmp_path)
    target = tmp_path / "alone" / "model.onnx"
    checked.check(target, "whole")
    assert not checked.failures
    sidecar = target.with_name("model_hierarchy.json")
    sidecar.write_bytes(checked.expected[0][sidecar.name])
    checked.check(target, "mixed")
    assert "mixed set of files" in checked.failures[0]
