"""Plain `torch.onnx.export`: what our files must equal once our metadata is gone."""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
import torch.fx.graph_module


def fresh_generated_code() -> None:
    """Start torch's count of generated code files anew, as in a new process.

    The count is part of the stack traces that torch writes into the file where a model has a `no_grad` block or
    control flow, so two plain exports in one process differ by it.
    """
    torch._dynamo.reset()
    torch.fx.graph_module._loader.next_id = 0
    # Lines of code that had the same file name before would be shown in stack traces of the new one.
    linecache.clearcache()


def export_plainly(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path, **options: Any
) -> onnx.ModelProto:
    """The model that torch writes, weights inline."""
    _export(model, args, kwargs, path, **options)
    return onnx.load(path)


def export_raw_and_optimized(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], folder: Path, **options: Any
) -> dict[bool, onnx.ModelProto]:
    """The models that torch writes with ``optimize=False`` and ``optimize=True``, of one capture."""
    program = _export(model, args, kwargs, folder / "raw.onnx", optimize=False, **options)
    program.optimize()
    program.save(folder / "optimized.onnx", external_data=False)
    return {optimize: onnx.load(folder / f"{name}.onnx") for optimize, name in ((False, "raw"), (True, "optimized"))}


def _export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path, **options: Any
) -> torch.onnx.ONNXProgram:
    fresh_generated_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, args, str(path), kwargs=kwargs or None, dynamo=True, verbose=False, external_data=False, **options
        )
    assert program is not None
    return program
