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
    fresh_generated_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, args, str(path), kwargs=kwargs or None, dynamo=True, verbose=False, external_data=False, **options
        )
    return onnx.load(path)
