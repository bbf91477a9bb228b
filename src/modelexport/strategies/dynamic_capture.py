"""A capture whose inputs may have other sizes: axes that are asked for, or of those found what torch takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from modelexport.capture import (
    AUTO,
    BATCH,
    TORCHSCRIPT,
    Axis,
    Capture,
    DynamicAxes,
    ExampleCall,
    axes_by_input,
    axes_kept_by_torch,
    check_axes,
    check_forward,
    describe_axes,
    dynamic_shapes,
    find_axes,
    merge_equal_axes,
    with_sizes_above_one,
)
from modelexport.errors import ExportError, InputError
from modelexport.strategies.attempts import AttemptReport
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.selection import Candidate

Attempt = Callable[[CaptureRequest], tuple[Capture, tuple[AttemptReport, ...]]]


@dataclasses.dataclass(frozen=True)
class Captured:
    """A capture, the attempts that led to it, the axes of its inputs that are dynamic, and what is to be said of them.

    Attributes:
        capture: The capture.
        attempts: The strategies that were tried, the last of them successfully.
        dynamic_axes: For each input with dynamic axes the name of the dimension by the number of the axis.
        notes: What a user should know of them.
    """

    capture: Capture
    attempts: tuple[AttemptReport, ...]
    dynamic_axes: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def capture_dynamic(
    request: CaptureRequest, dynamic: DynamicAxes, found: Sequence[Candidate], attempt: Attempt
) -> Captured:
    """Capture a model with axes that may have other sizes.

    Args:
        request: What is to be captured, with inputs of some size.
        dynamic: ``"auto"``, or the axes by input and number.
        found: The candidates that `attempt` tries.
        attempt: Captures what it is given.

    Raises:
        InputError: An axis cannot be what it is said to be.
        ExportError: No strategy could export the model; with axes that were named by hand, not with these.
    """
    call = ExampleCall(request.model, request.args, dict(request.kwargs))
    # Where others can serve too it is not asked: it takes any axis, also those that it fixes when it traces.
    by_torchscript = all(candidate.exporter == TORCHSCRIPT for candidate in found)
    axes = find_axes(call) if dynamic == AUTO else check_axes(dynamic, call)
    if dynamic != AUTO:
        _check_sizes_above_one(call, with_sizes_above_one(call, axes), training=request.training)
    refused: list[Axis] = []
    while True:
        exported = with_sizes_above_one(call, axes)
        options = {**request.options, **_options(exported, axes, request.options, by_torchscript)}
        wanted = dataclasses.replace(request, args=exported.args, kwargs=exported.kwargs, options=options)
        try:
            capture, attempts = attempt(wanted)
        except ExportError:
            if dynamic != AUTO or not axes:
                raise
            fewer = _fewer(exported, axes)
            refused += [axis for axis in axes if axis not in fewer]
            axes = fewer
            continue
        return Captured(capture, attempts, axes_by_input(axes), tuple(_notes(call, axes, refused, capture.model.graph)))


def _check_sizes_above_one(call: ExampleCall, exported: ExampleCall, *, training: bool) -> None:
    """Where a size of one is exported as two, the model is run once more: what it was checked with is not exported."""
    if exported is call:
        return
    try:
        check_forward(exported.model, exported.args, exported.kwargs, training=training)
    except InputError as error:
        raise InputError(f"a dynamic axis of size 1 is exported with 2 on it: {error}") from error


def _options(
    call: ExampleCall, axes: Mapping[Axis, str], options: Mapping[str, Any], by_torchscript: bool
) -> dict[str, Any]:
    """What to tell the exporter of the axes."""
    if not axes:
        return {}
    if not by_torchscript:
        return {"dynamic_shapes": dynamic_shapes(call, axes)}
    # It knows inputs by the names that it is given for them.
    own = list(call.tensors())
    given = list(options.get("input_names") or ())
    names = dict(zip(own, given + own[len(given) :], strict=False))
    return {
        "input_names": list(names.values()),
        "dynamic_axes": {names[name]: dimensions for name, dimensions in axes_by_input(axes).items()},
    }


def _fewer(call: ExampleCall, axes: Mapping[Axis, str]) -> dict[Axis, str]:
    """What to try when torch refuses: the same axes with more of them equal; then only some of them; then none."""
    tied = merge_equal_axes(call, axes)
    if len(set(tied.values())) < len(set(axes.values())):
        return tied
    kept = axes_kept_by_torch(call, axes)
    if kept is not None and len(kept) < len(axes):
        return kept
    batch = {axis: name for axis, name in axes.items() if name == BATCH}
    return batch if len(batch) < len(axes) else {}


def _notes(call: ExampleCall, axes: Mapping[Axis, str], refused: Sequence[Axis], graph: ir.Graph) -> Iterator[str]:
    if refused:
        places = ", ".join(f"{name}:{axis}" for name, axis in refused)
        yield f"forward takes other sizes on these axes, and torch cannot export them: {places}"
    # Transformers' exporter has torch name the dimensions, and so does torch beside arguments that are no tensors. Two
    # names of what torch finds to be one size become one.
    written = {str(size) for value in graph.inputs for size in value.shape or ()}
    others = [name for name in dict.fromkeys(axes.values()) if name not in written]
    renamed = f" (the file has other names for {', '.join(others)})" if others else ""
    yield f"dynamic axes: {describe_axes(axes, call)}{renamed}" if axes else "no axis is dynamic"
