"""transformers' own ONNX exporter, for models of its classes that torch's exporter cannot export.

It calls `torch.export` and `torch.onnx` as well, so that the evidence is the same as with the dynamo exporter.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from modelexport.attempt_report import PLAIN, Variant
from modelexport.capture import BATCH, DYNAMO_WITH_CACHES, SEQUENCE, TRANSFORMERS, Capture, in_one_line
from modelexport.capture.fx.dynamo_exporter import capture_export, capture_with_dynamo
from modelexport.errors import UnusableOptionError
from modelexport.torch_support.private_export import name_dynamic_axes
from modelexport.torch_support.transformers_private import (
    export_to_onnx,
    graph_names_through,
    input_preparation_through,
    register_caches,
)

# The fields of its configuration that are options of torch.onnx.export. It has no field for other options.
_OPTIONS = ("opset_version", "optimize", "dynamic_shapes", "dynamic")


def capture_with_transformers(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    variant: Variant = PLAIN,
) -> Capture:
    """Export a `PreTrainedModel` with `transformers.exporters` and record the module call of each node.

    The options are `opset_version`, `optimize`, `dynamic_shapes`; `dynamic` makes every axis dynamic that can be, and
    `rename` changes its names of inputs and outputs (see `graph_names_through`), and of dynamic axes.

    Raises:
        UnusableOptionError: Inputs or options that this exporter does not support: it takes inputs by keyword only.
    """
    if args:
        raise UnusableOptionError(
            "transformers' exporter takes inputs by keyword only.",
            "Give the example inputs as a dict of forward arguments.",
        )
    rename = options.get("rename") or (lambda name, is_output: name)
    refused = sorted(name for name, value in options.items() if name not in (*_OPTIONS, "verbose", "rename") and value)
    if refused:
        raise UnusableOptionError(f"transformers' exporter has no option {', '.join(refused)}.", "Leave it out.")
    settings = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    shapes = settings.get("dynamic_shapes")
    if shapes is not None:
        settings["dynamic_shapes"] = _without_names(shapes)

    notes: list[str] = []

    def export() -> torch.onnx.ONNXProgram:
        # The exporter modifies caches among the inputs in place.
        inputs = copy.deepcopy(dict(kwargs))
        with input_preparation_through(prepare_if_possible), graph_names_through(rename):
            program = export_to_onnx(model, inputs, settings)
        if shapes is not None:
            name_dynamic_axes(program, shapes)
        elif "rename" in options:
            name_dynamic_axes(program, _axis_names(program.model.graph.inputs))
        return program

    def prepare_if_possible(
        prepare: Callable[..., None], model: torch.nn.Module, inputs: MutableMapping[str, Any]
    ) -> None:
        """Prepare the inputs; where transformers' exporter cannot, keep them: the export may still succeed."""
        prepared = dict(inputs)
        try:
            prepare(model, prepared)
        except Exception as error:  # noqa: BLE001  the export shows whether it matters
            why = in_one_line(error)
            notes.append(f"transformers' exporter could not prepare the inputs, and took them as they are: {why}")
            return
        inputs.update(prepared)

    optimize = bool(settings.get("optimize", True))
    capture = capture_export(model, export, TRANSFORMERS, optimize=optimize, variant=variant)
    return dataclasses.replace(capture, notes=(*capture.notes, *dict.fromkeys(notes)))


def capture_with_caches(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    variant: Variant = PLAIN,
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)` after registering transformers' caches as pytree nodes.

    Without that torch cannot export a model that returns a cache. transformers' exporter also changes the model, and
    fails where it cannot. torch has no way to undo the registration.
    """
    register_caches(model)
    capture = capture_with_dynamo(model, args, kwargs, options, variant)
    return dataclasses.replace(capture, exporter=DYNAMO_WITH_CACHES)


def _axis_names(inputs: Sequence[ir.Value]) -> list[dict[int, str]]:
    """Return a name for each dynamic axis of the inputs of a graph: the first in which a size appears names it.

    All axes 0 are `batch`, although torch keeps those apart that may broadcast.
    """
    found: list[dict[int, str]] = []
    names: dict[str, str] = {}
    for value in inputs:
        # The exporter writes sizes that it fixes late as names, too.
        sizes = [(axis, str(size)) for axis, size in enumerate(value.shape or ()) if not str(size).isdigit()]
        for axis, size in sizes:
            own = SEQUENCE if axis == 1 and value is inputs[0] else re.sub(r"\W", "_", f"{value.name}_{axis}")
            names.setdefault(size, BATCH if axis == 0 else own)
        found.append({axis: names[size] for axis, size in sizes})
    return found


def _without_names(shapes: Any) -> Any:
    """Return dynamic shapes with `Dim.DYNAMIC` for names, as `torch.onnx.export` does: only that function takes names.

    `Dim` objects with names would have to fit all sizes: torch refuses them where the model limits a size.
    """
    if isinstance(shapes, str):
        return torch.export.Dim.DYNAMIC
    if isinstance(shapes, Mapping):
        return {key: _without_names(value) for key, value in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(map(_without_names, shapes))
    return shapes
