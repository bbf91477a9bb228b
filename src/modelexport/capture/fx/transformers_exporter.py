"""transformers' own ONNX exporter, for models of its classes that torch's exporter cannot export.

It calls `torch.export` and `torch.onnx` as well, so that the evidence is the same as with the dynamo exporter.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch

from modelexport.capture import DYNAMO_WITH_CACHES, TRANSFORMERS, Capture, in_one_line
from modelexport.capture.fx.dynamo_exporter import capture_export, capture_with_dynamo
from modelexport.errors import UnusableOptionError
from modelexport.torch_support.transformers_private import (
    export_to_onnx,
    input_preparation_through,
    register_caches,
)

# The fields of its configuration that are options of torch.onnx.export. It has no field for other options.
_OPTIONS = ("opset_version", "optimize", "dynamic_shapes", "dynamic")


def unsupported_options(options: Mapping[str, Any]) -> list[str]:
    """Return the options with an effect that this exporter does not have."""
    return sorted(name for name, value in options.items() if name not in (*_OPTIONS, "verbose") and value)


def capture_with_transformers(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export with `transformers.exporters` and record the module call of each node.

    Args:
        model: A `PreTrainedModel`, in the mode in which it is exported.
        args: Must be empty: the exporter takes inputs by keyword only.
        kwargs: The example inputs.
        options: `opset_version`, `optimize`, `dynamic_shapes`; `dynamic` makes every axis dynamic that can be.

    Raises:
        UnusableOptionError: Inputs or options that this exporter does not support.
    """
    if args:
        raise UnusableOptionError(
            "transformers' exporter takes inputs by keyword only.",
            "Give the example inputs as a dict of forward arguments.",
        )
    refused = unsupported_options(options)
    if refused:
        raise UnusableOptionError(f"transformers' exporter has no option {', '.join(refused)}.", "Leave it out.")
    settings = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    if "dynamic_shapes" in settings:
        settings["dynamic_shapes"] = _with_dimensions(settings["dynamic_shapes"], {})

    unprepared: list[Exception] = []

    def prepare_if_possible(
        prepare: Callable[..., None], model: torch.nn.Module, inputs: MutableMapping[str, Any]
    ) -> None:
        prepared = dict(inputs)
        try:
            prepare(model, prepared)
        except Exception as error:  # noqa: BLE001  the export shows whether it matters; the note names it
            unprepared[:] = [error]
        else:
            inputs.update(prepared)

    def export() -> torch.onnx.ONNXProgram:
        # The exporter modifies caches among the inputs in place, and torch prints its progress by default.
        inputs = copy.deepcopy(dict(kwargs))
        quiet = contextlib.redirect_stdout(sys.stdout if options.get("verbose") else io.StringIO())
        with quiet, input_preparation_through(prepare_if_possible):
            return export_to_onnx(model, inputs, settings)

    capture = capture_export(model, export, TRANSFORMERS, optimize=bool(settings.get("optimize", True)))
    notes = [f"transformers' exporter could not prepare the inputs: {in_one_line(error)}" for error in unprepared]
    return dataclasses.replace(capture, notes=(*capture.notes, *notes))


def capture_with_caches(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)` after registering transformers' caches as pytree nodes.

    Without that torch cannot export a model that returns a cache. transformers' exporter also changes the model, and
    fails where it cannot. torch has no way to undo the registration. The arguments are those of `capture_with_dynamo`.
    """
    register_caches(model)
    return dataclasses.replace(capture_with_dynamo(model, args, kwargs, options), exporter=DYNAMO_WITH_CACHES)


def _with_dimensions(shapes: Any, dimensions: dict[str, Any]) -> Any:
    """Return dynamic shapes with `torch.export.Dim` objects for names; only `torch.onnx.export` takes names.

    `dimensions` has the objects so far, one for each name.
    """
    if isinstance(shapes, str):
        return dimensions.setdefault(shapes, torch.export.Dim(shapes))
    if isinstance(shapes, Mapping):
        return {key: _with_dimensions(value, dimensions) for key, value in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(_with_dimensions(value, dimensions) for value in shapes)
    return shapes
