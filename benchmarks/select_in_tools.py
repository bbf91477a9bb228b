"""What Olive and NNCF make of the node lists that ``modelexport select`` prints for them.

Both are too large for the development environment: run this where they are installed beside modelexport
(``pip install olive-ai nncf``). It exports the built-in BERT, and prints a line for each tool.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

_MATRIX = ("MatMul", "Gemm")


def _select(file: Path, pattern: str, form: str) -> dict[str, object]:
    command = [sys.executable, "-c", "from modelexport.cli.main import run; run()", "select", str(file), pattern]
    done = subprocess.run([*command, "--format", form], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def try_olive(file: Path, folder: Path) -> None:
    from olive.workflows import run

    printed = _select(file, "encoder.layer.0 and (op:MatMul or op:Gemm)", "olive")
    names = set(printed["nodes_to_exclude"])
    for number, preparation in enumerate((False, True)):
        written = folder / f"olive-{number}"
        step = {**printed, "quant_mode": "dynamic", "quant_preprocess": preparation}
        config = {
            "input_model": {"type": "OnnxModel", "model_path": str(file)},
            "passes": {"quantize": step},
            "output_dir": str(written),
            "cache_dir": str(folder / "cache"),
            "log_severity_level": 3,
        }
        run(config)
        model = onnx.load(next(written.rglob("*.onnx")))
        kept = [node.name for node in model.graph.node if node.op_type in _MATRIX and node.name in names]
        quantized = sum("Integer" in node.op_type for node in model.graph.node)
        print(f"olive, preparation {preparation}: {len(kept)} of {len(names)} named in float, {quantized} quantized")


def try_nncf(file: Path) -> None:
    import nncf

    arguments = _select(file, "class:BertEmbeddings or class:LayerNorm", "nncf")
    inputs = onnx.load(file).graph.input
    feeds = {i.name: np.ones([d.dim_value for d in i.type.tensor_type.shape.dim], np.int64) for i in inputs}
    data = nncf.Dataset([feeds])
    whole = _quantized(nncf.quantize(onnx.load(file), data, subset_size=1))
    scope = nncf.IgnoredScope(**arguments)
    part = _quantized(nncf.quantize(onnx.load(file), data, subset_size=1, ignored_scope=scope))
    names = set(arguments["names"])
    print(f"nncf: {len(whole)} quantized, {len(part)} without those named; exactly the rest: {part == whole - names}")


def _quantized(model: onnx.ModelProto) -> set[str]:
    made = {output: node.op_type for node in model.graph.node for output in node.output}
    return {
        node.name
        for node in model.graph.node
        if not node.op_type.endswith("Linear") and any(made.get(name) == "DequantizeLinear" for name in node.input)
    }


def main() -> None:
    from modelexport import export_model
    from modelexport.sources.loaders.model_reference import load_model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sourced = load_model("builtin:bert-tiny")
        export_model(sourced.model, sourced.example_inputs, folder / "bert.onnx")
        try_olive(folder / "bert.onnx", folder)
        try_nncf(folder / "bert.onnx")


if __name__ == "__main__":
    main()
