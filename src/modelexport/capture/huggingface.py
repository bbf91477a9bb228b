"""transformers' own ONNX exporter, for models of its classes that plain torch cannot take.

It goes by way of `torch.export` and `torch.onnx` as well, so the evidence is the same as with the dynamo exporter.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from modelexport.capture.capture import Capture
from modelexport.capture.dynamo import capture_watched
from modelexport.errors import InputError

EXPORTER = "transformers"

# What its configuration takes, under the names of torch.onnx.export. For other options of torch it has no place.
_OPTIONS = ("opset_version", "optimize", "dynamic_shapes")


def can_export(model: torch.nn.Module) -> bool:
    """Whether transformers is installed with its exporter, and the model is of its classes."""
    try:
        from transformers import PreTrainedModel
        from transformers.exporters import exporter_onnx  # noqa: F401  only some releases have it
    except ImportError:
        return False
    return isinstance(model, PreTrainedModel)


def unsupported_options(options: Mapping[str, Any]) -> list[str]:
    """The options, other than ones that change nothing, that this exporter cannot be given."""
    return sorted(name for name, value in options.items() if name not in (*_OPTIONS, "verbose") and value)


def capture_with_transformers(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export with `transformers.exporters` and gather what ran each node.

    Args:
        model: A `PreTrainedModel`, in the mode it is to be exported in.
        args: Must be empty: the exporter takes inputs by keyword.
        kwargs: The example inputs.
        options: `opset_version`, `optimize`, `dynamic_shapes`.

    Raises:
        InputError: Inputs or options that this exporter does not take.
    """
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    if args:
        raise InputError(
            "transformers' exporter takes inputs by keyword: give the example inputs as a dict of forward arguments"
        )
    refused = unsupported_options(options)
    if refused:
        raise InputError(f"transformers' exporter has no option {', '.join(refused)}: leave it out")
    config = OnnxConfig(**{name: options[name] for name in _OPTIONS if options.get(name) is not None})

    def export() -> torch.onnx.ONNXProgram:
        # The exporter changes caches among the inputs in place.
        program: torch.onnx.ONNXProgram = OnnxExporter().export(model, copy.deepcopy(dict(kwargs)), config)
        return program

    return capture_watched(model, export, EXPORTER)
