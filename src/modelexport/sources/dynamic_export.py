"""An export whose inputs may have other sizes: axes that are asked for, or of those found what torch takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.diagnosis import check_signature
from modelexport.errors import ExportError
from modelexport.export import export_model
from modelexport.inputs import normalize_inputs
from modelexport.result import ExportResult
from modelexport.sources.dynamic_axes import (
    BATCH,
    Axis,
    Call,
    axes_torch_keeps,
    check_axes,
    describe_axes,
    dynamic_axes,
    dynamic_shapes,
    find_axes,
    tied_axes,
    widened,
)

_NAMES_BY_TORCH = "transformers"
_TRACED_BY_TORCHSCRIPT = ("htp", "torchscript")


@dataclasses.dataclass(frozen=True)
class DynamicExport:
    """An export, the axes of its inputs that may have other sizes, and what is to be said about them."""

    result: ExportResult
    axes: Mapping[Axis, str]
    notes: tuple[str, ...]


def export_dynamic(
    model: torch.nn.Module,
    example_inputs: object,
    output: Path,
    dynamic: str | Sequence[tuple[str, int, str]],
    **options: Any,
) -> DynamicExport:
    """Export a model with axes that may have other sizes.

    Args:
        model: The model.
        example_inputs: What it is run on.
        output: The file to write.
        dynamic: ``"auto"``, or the axes: the name of the input, the number of the axis, the name of the dimension.
        **options: Those of `export_model`.

    Raises:
        InputError: An axis cannot be what it is said to be.
        ExportError: No strategy could export the model; with axes that were named by hand, not with these.
    """
    call = Call(model, *normalize_inputs(example_inputs, options.pop("kwargs", None)))
    check_signature(model, call.args, call.kwargs)
    by_hand = not isinstance(dynamic, str)
    axes = find_axes(call) if isinstance(dynamic, str) else check_axes(dynamic, call)
    refused: list[Axis] = []
    while True:
        exported = widened(call, axes)
        inputs = (*exported.args, exported.kwargs)
        try:
            result = export_model(model, inputs, output, **_options(exported, axes, options))
        except ExportError:
            if by_hand or not axes:
                raise
            fewer = _fewer(exported, axes)
            refused += [axis for axis in axes if axis not in fewer]
            axes = fewer
            continue
        return DynamicExport(result, axes, tuple(_notes(call, axes, refused, result.document.exporter)))


def _notes(call: Call, axes: Mapping[Axis, str], refused: Sequence[Axis], exporter: str) -> Iterator[str]:
    if refused:
        places = ", ".join(f"{name}:{axis}" for name, axis in refused)
        yield f"forward takes other sizes on these axes, and torch cannot export them: {places}"
    # Transformers' own exporter has torch name the dimensions, and its graph is left as it is.
    renamed = " (in the file under torch's own names)" if exporter == _NAMES_BY_TORCH else ""
    yield f"dynamic axes: {describe_axes(axes, call)}{renamed}" if axes else "no axis is dynamic"


def _options(call: Call, axes: Mapping[Axis, str], options: Mapping[str, Any]) -> dict[str, Any]:
    if not axes:
        return dict(options)
    if options.get("strategy") in _TRACED_BY_TORCHSCRIPT or options.get("exporter") in _TRACED_BY_TORCHSCRIPT:
        # It knows inputs by the names that it is given for them.
        return {"input_names": list(call.tensors()), **options, "dynamic_axes": dynamic_axes(axes)}
    return {**options, "dynamic_shapes": dynamic_shapes(call, axes)}


def _fewer(call: Call, axes: Mapping[Axis, str]) -> dict[Axis, str]:
    """What to try when torch refuses: the same axes with more of them equal; then only some of them; then none."""
    tied = tied_axes(call, axes)
    if len(set(tied.values())) < len(set(axes.values())):
        return tied
    kept = axes_torch_keeps(call, axes)
    if kept is not None and len(kept) < len(axes):
        return kept
    batch = {axis: name for axis, name in axes.items() if name == BATCH}
    return batch if len(batch) < len(axes) else {}
