"""How long it takes to cut a layer out of a 12-layer BERT-base, against onnx.utils.extract_model on the same cut.

Both start from the file on disk and end with a file on disk. The model has random weights, 110 M of them.

    python -m benchmarks.extraction [--rounds 3] [--layer 7]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.utils
import torch
from benchmarks.quiet import quiet

import modelexport
from modelexport.analysis.extraction.submodel_files import write_submodel


def export_bert(path: Path) -> None:
    """Write BERT-base, as its configuration comes, with random weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    tokens = torch.randint(1, 1000, (1, 64))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with quiet():
        modelexport.export_model(model, inputs, path, strategy="fx", optimize=False, external_data=False)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layer", type=int, default=7)
    options = parser.parse_args()
    target = f"encoder.layer.{options.layer}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert.onnx"
        export_bert(path)
        print(f"BERT-base, 12 layers: {path.stat().st_size / 2**20:.0f} MB, cut: {target}")
        call = next(c for c in modelexport.read_model(path).document.calls if c.id == target)
        given = [str(tensor.tensor) for tensor in call.inputs]
        made = [str(tensor.tensor) for tensor in call.outputs]
        ours_file, theirs_file = Path(folder) / "ours.onnx", Path(folder) / "theirs.onnx"
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(
                seconds(lambda: write_submodel(modelexport.Extractor(path).extract(target), ours_file, overwrite=True))
            )
            theirs.append(seconds(lambda: onnx.utils.extract_model(path, theirs_file, given, made)))
        nodes = [len(onnx.load(file, load_external_data=False).graph.node) for file in (ours_file, theirs_file)]
        print(f"nodes: {nodes[0]} and {nodes[1]}; bytes: {ours_file.stat().st_size} and {theirs_file.stat().st_size}")
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"modelexport {mine:.2f} s, onnx.utils.extract_model {other:.2f} s (median of {options.rounds})")
    print(f"ratio {mine / other:.2f}")


if __name__ == "__main__":
    main()
