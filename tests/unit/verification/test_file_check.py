"""The check of a file alone: what onnxruntime does with it, and which results it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from modelexport.hierarchy import (
    SCHEMA_VERSION,
    CheckOutcome,
    FileCheck,
    HierarchyDocument,
    Producer,
    TagView,
)
from modelexport.limits import RunLimits
from modelexport.ort import FileRun, Runner
from modelexport.verification.file_check import FileChecker

_DOCUMENT = HierarchyDocument(SCHEMA_VERSION, Producer(), "fx", "dynamo", "", TagView(), (), (), (), ())


class _Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _check(
    path: Path,
    nodes: list[onnx.NodeProto],
    sizes: list[int],
    reference: nn.Module | None = None,
    **options: object,
) -> FileCheck:
    """Check a file with these nodes, from `x` to `y`, against a model, by default one that returns its input."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(sizes, np.int64), "sizes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    document = _DOCUMENT
    with FileChecker(
        reference or _Same(), (), {"x": torch.ones(1)}, level="run", most_bytes=2**20, **options
    ) as checker:
        return checker.check(path, ir.from_proto(model), document)[0]


def test_a_run_beyond_the_limits_is_not_called_wrong(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Expand", ["x", "sizes"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["y"], keepdims=0),
    ]
    check = _check(tmp_path / "large.onnx", nodes, [2**20, 2**12], limits=RunLimits(memory_bytes=2**31))
    assert check.outcome is CheckOutcome.UNCHECKED
    assert "ran out of memory, its limit is 2 GiB" in check.reason


def test_a_run_that_fails_names_what_failed(tmp_path: Path) -> None:
    check = _check(tmp_path / "reshape.onnx", [helper.make_node("Reshape", ["x", "sizes"], ["y"], name="bend")], [3])
    assert check.outcome is CheckOutcome.RUN_FAILED
    assert "bend" in check.reason


def test_a_file_is_only_loaded_where_the_model_fails_in_pytorch(tmp_path: Path) -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not on this machine")

    check = _check(tmp_path / "same.onnx", [helper.make_node("Identity", ["x"], ["y"])], [1], Failing())
    assert check.outcome is CheckOutcome.LOADED
    assert check.reason == "PyTorch cannot run the model here (ValueError: not on this machine)"


def test_a_first_file_that_loads_only_without_optimizations_is_equal_unoptimized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file = Runner.run_file

    def failing(self: Runner, *args: Any, optimized: bool = True, **options: Any) -> Any:
        run, found = run_file(self, *args, optimized=optimized, **options)
        return (FileRun(False, "a fusion failed", False), {}) if optimized else (run, found)

    monkeypatch.setattr(Runner, "run_file", failing)
    check = _check(tmp_path / "same.onnx", [helper.make_node("Identity", ["x"], ["y"])], [1])
    assert (check.outcome, check.reason) == (CheckOutcome.EQUAL_UNOPTIMIZED, "a fusion failed")


def test_the_best_check_comes_first() -> None:
    checks = [
        FileCheck(CheckOutcome.LOAD_FAILED),
        FileCheck(CheckOutcome.RUN_FAILED),
        FileCheck(CheckOutcome.DIFFERENT),
        FileCheck(CheckOutcome.DIFFERENT, error=2.0),
        FileCheck(CheckOutcome.DIFFERENT, error=1.0),
        FileCheck(CheckOutcome.EQUAL_UNOPTIMIZED, error=3.0),
        FileCheck(CheckOutcome.EQUAL, error=0.0),
    ]
    assert sorted(checks, key=lambda check: check.rank) == checks[::-1]
    assert [check.is_wrong for check in checks] == [True] * 6 + [False]
