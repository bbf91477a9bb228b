"""A fixed sample of the sweep over all architectures: what must hold for each of them, whichever library it is from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Small, quick to export, and as different as possible.
SAMPLE = {
    "transformers": (
        "clip",
        "deberta-v2",
        "segformer",
        "wav2vec2",
    ),
    "timm": (
        "convit",
        "mambaout",
    ),
}

pytestmark = pytest.mark.integration
every_model = pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{source}:{name}", marks=pytest.mark.xdist_group(f"sweep-{source}"))
        for source, names in SAMPLE.items()
        for name in names
    ],
)


@cache
def swept(source: str) -> dict[str, dict[str, Any]]:
    """What came of the models of one library, in one process: see `tests.support.sweep_sample`."""
    names = [f"{source}:{name}" for name in SAMPLE[source]]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.sweep_sample", *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    records = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {record["name"]: record for record in records}


@pytest.mark.timeout(600)
@every_model
def test_architecture_is_exported_as_torch_does_with_true_owners_and_true_results(name: str) -> None:
    record = swept(name.partition(":")[0])[name]
    assert "error" not in record.get("built", {}), record
    assert "error" not in record["forward"], record
    assert "value" in record["ours"], record["ours"]
    assert record["ours"]["value"]["coverage"] == 1.0
    checks = record["checks"]
    if record["ours"]["value"]["exporter"] == "dynamo":
        assert checks["same_bytes"] is True
    else:
        assert "error" in record["plain"], "plain torch exports it: ours must be that graph"
    assert checks["contaminated"]["count"] == 0, checks["contaminated"]
    assert checks["contaminated"]["judged"] >= 3
    assert checks["judged"]["count"] == 0, checks["judged"]
    assert checks["runtime"]["equal"] is True, checks["runtime"]
    assert checks["extracted"]["different"] == 0, checks["extracted"]
