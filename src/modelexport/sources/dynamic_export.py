"""An export whose inputs may have other sizes: axes that are asked for, or of those found what torch takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ExportError, InputError
from modelexport.export import export_model
from modelexport.inputs import normalize_inputs
from modelexport.result import ExportResult
from modelexport.sources.dynamic_axes import (
    AUTO,
    BATCH,
    Axis,
    Call,
    axes_torch_keeps,
    describe_axes,
    dropped_axes,
    dynamic_axes,
    dynamic_shapes,
    find_axes,
    parse_axes,
    widened,
)

_TRACED_BY_TORCHSCRIPT = ("htp", "torchscript")


@dataclasses.dataclass(frozen=True)
class DynamicExport:
    """An export, the axes of its inputs that may have other sizes, and what is to be said about them."""

    result: ExportResult
    axes: Mapping[Axis, str]
    notes: tuple[str, ...]


def check_dynamic(dynamic: Sequence[str]) -> None:
    """Finds out before a model is loaded what cannot be.

    Raises:
        InputError: Axes are named beside ``auto``.
    """
    if AUTO in dynamic and len(dynamic) > 1:
        raise InputError("--dynamic auto finds the axes: name none beside it")


def export_dynamic(
    model: torch.nn.Module, example_inputs: object, output: Path, dynamic: Sequence[str], **options: Any
) -> DynamicExport:
    """Export a model with axes that may have other sizes.

    Args:
        model: The model.
        example_inputs: What it is run on.
        output: The file to write.
        dynamic: ``["auto"]``, or axes as ``name:axis=dimension``.
        **options: Those of `export_model`.

    Raises:
        InputError: An axis cannot be what it is said to be.
        ExportError: No strategy could export the model; with axes that were named by hand, not with these.
    """
    check_dynamic(dynamic)
    args, kwargs = normalize_inputs(example_inputs, options.pop("kwargs", None))
    call = Call(model, args, kwargs)
    by_hand = AUTO not in dynamic
    axes = parse_axes(dynamic, call) if by_hand else find_axes(call)
    notes: list[str] = []
    while True:
        exported = widened(call, axes)
        try:
            result = export_model(model, (*exported.args, exported.kwargs), output, **_options(exported, axes, options))
        except ExportError:
            if by_hand or not axes:
                raise
            fewer = _fewer(exported, axes)
            notes += [f"torch cannot export it otherwise: {text}" for text in dropped_axes(axes, fewer)]
            axes = fewer
            continue
        notes.append(f"dynamic axes: {describe_axes(axes, call)}" if axes else "no axis can be dynamic")
        return DynamicExport(result, axes, tuple(notes))


def _options(call: Call, axes: Mapping[Axis, str], options: Mapping[str, Any]) -> dict[str, Any]:
    if not axes:
        return dict(options)
    if options.get("strategy") in _TRACED_BY_TORCHSCRIPT or options.get("exporter") in _TRACED_BY_TORCHSCRIPT:
        return {**options, "dynamic_axes": dynamic_axes(axes)}
    return {**options, "dynamic_shapes": dynamic_shapes(call, axes)}


def _fewer(call: Call, axes: Mapping[Axis, str]) -> dict[Axis, str]:
    """The axes that are left when torch fixed what it must; or only the batch; or none."""
    kept = axes_torch_keeps(call, axes)
    if kept is not None and len(kept) < len(axes):
        return kept
    batch = {axis: name for axis, name in axes.items() if name == BATCH}
    return batch if len(batch) < len(axes) else {}
