"""A few architectures of the sweep in one process: each built small, exported plainly and by ours, and checked.

    python -m tests.support.sweep_sample transformers:bert timm:resnet

prints a line of JSON for each. A process of its own for each library, because timm brings a torchvision along that
transformers must not find.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main(names: list[str]) -> None:
    """Sweep the models of these names."""
    import torch
    from benchmarks.quiet import quiet
    from benchmarks.sweep_candidates import Candidate

    from tests.support.faster_exports import faster_exports

    torch.set_num_threads(1)
    with faster_exports(), quiet():
        for name in names:
            began = time.process_time()
            record = {"name": name, **_sweep(Candidate.parse(name)), "cpu": round(time.process_time() - began, 2)}
            print(json.dumps(record), flush=True)  # noqa: T201  how it answers


def _sweep(candidate: Any) -> dict[str, Any]:
    import onnx
    from benchmarks.sweep_checks import check_export
    from benchmarks.sweep_process import describe
    from benchmarks.sweep_shrinking import LEVELS, SMALLEST
    from benchmarks.sweep_steps import build_with_inputs, digest_of, export_ours, export_plainly

    import modelexport
    from tests.support.plain import fresh_generated_code

    record: dict[str, Any] = {}
    built = build_with_inputs(candidate, record, (SMALLEST, *LEVELS))
    if built is None:
        return record
    with tempfile.TemporaryDirectory(prefix="modelexport-sweep-") as folder:
        plain, ours = Path(folder) / "plain.onnx", Path(folder) / "ours.onnx"
        for step, export, path in (("plain", export_plainly, plain), ("ours", export_ours, ours)):
            fresh_generated_code()
            try:
                record[step] = {"value": export(built, path)}
            except Exception as error:  # noqa: BLE001  whatever it is, it is the outcome
                record[step] = {"error": describe(error)}
        if "value" in record["ours"]:
            record["checks"] = check_export(ours, built.model, built.args, built.kwargs)
            if "value" in record["plain"]:
                stripped = modelexport.strip_hierarchy(onnx.load(ours))
                record["checks"]["same_bytes"] = digest_of(stripped) == record["plain"]["value"]["digest"]
    return record


if __name__ == "__main__":
    main(sys.argv[1:])
