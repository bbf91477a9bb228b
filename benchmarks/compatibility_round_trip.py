"""Export a CNN and a small BERT with each strategy, verify the files, and print the owners as JSON.

`compatibility.py` runs it in each environment: ``python -m benchmarks.compatibility_round_trip FILE``.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from benchmarks.export_overhead import small_cnn
from torch import nn

import modelexport

STRATEGIES = ("fx", "htp", "usage_based")


def _bert() -> tuple[nn.Module, Any]:
    loaded = modelexport.load_model("builtin:bert-tiny")
    return loaded.model, loaded.example_inputs


MODELS = {"CNN": small_cnn, "BERT": _bert}


def round_trip(model: nn.Module, inputs: Any, strategy: str, path: Path) -> dict[str, Any]:
    """Whether the file on disk computes what PyTorch does in every module call, and how many nodes each call owns."""
    exported = modelexport.export_model(model, inputs, path, strategy=strategy)
    document = modelexport.read_model(path).document
    verified = modelexport.verify_modules(path, model, inputs)
    if document.nodes != exported.document.nodes:
        return {"error": "the file has other owners than the result of the export"}
    if not verified.passed:
        return {"error": f"verify: {verified.counts} {verified.whole_run_error}".strip()}
    counted = Counter((node.module, node.op) for node in document.nodes)
    return {"owners": [[module, op, count] for (module, op), count in sorted(counted.items())]}


def main() -> None:
    """Write the results to the file that the command line names."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, build in MODELS.items():
        for strategy in STRATEGIES:
            torch.manual_seed(0)
            model, inputs = build()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result = round_trip(model.eval(), inputs, strategy, Path(folder) / "model.onnx")
                except Exception as error:  # noqa: BLE001  whatever fails in a version is a line of the page
                    result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            results[f"{name}, {strategy}"] = result
            print(f"{name}, {strategy}: {result.get('error', 'passed')}", flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
