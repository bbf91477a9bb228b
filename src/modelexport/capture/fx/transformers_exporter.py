"""transformers' own ONNX exporter, for models of its classes that plain torch cannot take.

It goes by way of `torch.export` and `torch.onnx` as well, so the evidence is the same as with the dynamo exporter.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch

from modelexport.capture import DYNAMO_WITH_CACHES, TRANSFORMERS, Capture
from modelexport.capture.fx.dynamo import capture_watched, capture_with_dynamo
from modelexport.errors import UnusableOptionError
from modelexport.torch_support.transformers_private import (
    export_to_onnx,
    input_preparation_through,
    register_caches,
)

_logger = logging.getLogger(__name__)

# torch's dynamo exporter, once torch has been told what is in transformers' caches.

# What its configuration takes, under the names of torch.onnx.export. For other options of torch it has no place.
_OPTIONS = ("opset_version", "optimize", "dynamic_shapes", "dynamic")


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
        options: `opset_version`, `optimize`, `dynamic_shapes`; `dynamic` lets every axis vary that can.

    Raises:
        UnusableOptionError: Inputs or options that this exporter does not take.
    """
    if args:
        raise UnusableOptionError(
            "transformers' exporter takes inputs by keyword alone.",
            "Give the example inputs as a dict of forward arguments.",
        )
    refused = unsupported_options(options)
    if refused:
        raise UnusableOptionError(f"transformers' exporter has no option {', '.join(refused)}.", "Leave it out.")
    given = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    if "dynamic_shapes" in given:
        given["dynamic_shapes"] = _with_dimensions(given["dynamic_shapes"], {})

    def export() -> torch.onnx.ONNXProgram:
        # The exporter changes caches among the inputs in place, and torch prints its progress unless told not to.
        inputs = copy.deepcopy(dict(kwargs))
        quiet = contextlib.redirect_stdout(sys.stdout if options.get("verbose") else io.StringIO())
        with quiet, input_preparation_through(_prepare_if_possible):
            return export_to_onnx(model, inputs, given)

    return capture_watched(model, export, TRANSFORMERS)


def _prepare_if_possible(
    prepare: Callable[..., None], model: torch.nn.Module, inputs: MutableMapping[str, Any]
) -> None:
    """Inputs that transformers' exporter cannot prepare go to the model as they are: it may be exported even so."""
    prepared = dict(inputs)
    try:
        prepare(model, prepared)
    except Exception as error:  # noqa: BLE001  whatever it is, the export decides
        _logger.info("transformers' exporter could not prepare the inputs (%r): they are taken as they are", error)
        return
    inputs.update(prepared)


def capture_with_caches(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)`, for models that return a cache: torch alone cannot take one apart.

    transformers' exporter does more to a model than that, and stops where it cannot do it. torch keeps what it is told
    of the caches: there is no way to take it back.

    Args:
        model: A `PreTrainedModel`, in the mode it is to be exported in.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`.
    """
    register_caches(model)
    return dataclasses.replace(capture_with_dynamo(model, args, kwargs, options), exporter=DYNAMO_WITH_CACHES)


def _with_dimensions(shapes: Any, made: dict[str, Any]) -> Any:
    """Dynamic shapes with torch's dimensions in place of names, which only `torch.onnx.export` takes.

    `made` are the dimensions so far: one for each name.
    """
    if isinstance(shapes, str):
        return made.setdefault(shapes, torch.export.Dim(shapes))
    if isinstance(shapes, Mapping):
        return {key: _with_dimensions(value, made) for key, value in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(_with_dimensions(value, made) for value in shapes)
    return shapes
