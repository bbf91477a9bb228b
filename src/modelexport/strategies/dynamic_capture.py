"""Capture a model, with dynamic axes: those the user names, or of those found the ones that torch can export."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from modelexport.attempt_report import AttemptReport
from modelexport.capture import (
    AUTO,
    BATCH,
    TORCHSCRIPT,
    Axis,
    Capture,
    DynamicAxes,
    ExampleCall,
    axes_by_input,
    axes_freed_by_torch,
    check_axes,
    check_forward,
    describe_axes,
    dynamic_shapes,
    find_axes,
    is_dynamic,
    result_axes,
    with_sizes_above_one,
)
from modelexport.errors import ExportError, InputError
from modelexport.hierarchy import SizeRange
from modelexport.strategies.attempt_outcomes import is_by_values
from modelexport.strategies.attempts import Attempts
from modelexport.strategies.base import CaptureRequest
from modelexport.strategies.selection import Candidate


@dataclasses.dataclass(frozen=True)
class Captured:
    """A capture, its attempt, and the dynamic axes of its inputs.

    Attributes:
        capture: The capture.
        attempt: The attempt that led to it.
        dynamic_axes: For each input with dynamic axes the dimension names by axis index.
        notes: Messages to the user about these axes.
    """

    capture: Capture
    attempt: AttemptReport
    dynamic_axes: Mapping[str, Mapping[int, str]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def capture_model(
    request: CaptureRequest, candidates: Sequence[Candidate], dynamic: DynamicAxes | None, attempts: Attempts
) -> Iterator[Captured]:
    """Capture a model, with each candidate that succeeds, until the caller accepts one: see `Attempts.captures`.

    Args:
        request: The model to capture, with example inputs.
        candidates: The strategies to try, in order.
        dynamic: ``"auto"``, the dimension names by input and axis index, or None for fixed sizes.
        attempts: Makes and records the attempts.

    Raises:
        InputError: A named axis does not exist or cannot be dynamic.
        ExportError: No strategy could export the model, with named axes not with all of these.
    """
    if dynamic is None:
        for capture in attempts.captures(candidates, request):
            yield Captured(capture, attempts.reports[-1])
        return
    call = ExampleCall(request.model, request.args, dict(request.kwargs))
    axes = find_axes(call) if dynamic == AUTO else check_axes(dynamic, call)
    if dynamic != AUTO:
        _check_sizes_above_one(call, with_sizes_above_one(call, axes), training=request.training)
    for tried in _fewer_and_fewer(call, axes, attempts.wrong_axes) if dynamic == AUTO else [axes]:
        is_last = dynamic != AUTO or not tried
        exported = with_sizes_above_one(call, tried)
        axis_options = functools.partial(_axis_options, exported, tried, request)
        wanted = dataclasses.replace(request, args=exported.args, kwargs=exported.kwargs, axis_options=axis_options)
        refused = [axis for axis in axes if axis not in tried]
        try:
            # Fewer axes are tried before a last resort.
            for capture in attempts.captures(candidates, wanted, _described(tried), last_resorts=is_last):
                fixed = [] if dynamic != AUTO else _fixed_axes(exported, tried, capture.size_ranges)
                if fixed:
                    attempts.reject_last(f"torch allows hardly another size: {', '.join(fixed)}")
                    continue
                own = _fixed_by_forward(call, axes) if dynamic == AUTO else ()
                notes = (*own, *_notes(call, tried, refused, attempts.reports, capture.model.graph))
                yield Captured(capture, attempts.reports[-1], axes_by_input(tried), notes)
        except ExportError as error:
            if is_last or is_by_values(error):
                raise
            if attempts.is_time_up:
                attempts.skip(candidates, "fewer dynamic axes")
                error.attempts = tuple(attempts.reports)
                raise
        if attempts.is_time_up:
            return


def _fewer_and_fewer(call: ExampleCall, axes: dict[Axis, str], wrong: Collection[str]) -> Iterator[dict[Axis, str]]:
    """Yield the axes, and in case no file is right with them, fewer and fewer.

    First those at other sizes of which no file was wrong, then those that torch frees, then only the batch, then none.
    `wrong` grows meanwhile.
    """
    tried = [axes]
    yield axes
    if axes:
        right = {axis: name for axis, name in axes.items() if name.rpartition("*")[2] not in wrong}
        if right and right not in tried:
            tried.append(right)
            yield right
        freed = axes_freed_by_torch(with_sizes_above_one(call, axes), axes)
        batch = {axis: name for axis, name in axes.items() if name == BATCH}
        yield from (fewer for fewer in (freed, batch if batch != freed else {}) if fewer and fewer not in tried)
        yield {}


def _described(axes: Mapping[Axis, str]) -> str:
    if not axes:
        return "no dynamic axes"
    return f"dynamic axes {', '.join(f'{name}:{axis}={dimension}' for (name, axis), dimension in axes.items())}"


def _check_sizes_above_one(call: ExampleCall, exported: ExampleCall, *, training: bool) -> None:
    """Run the model again where an axis of size 1 is exported with size 2: the check ran other inputs."""
    if exported is call:
        return
    try:
        check_forward(exported.model, exported.args, exported.kwargs, training=training)
    except InputError as error:
        raise InputError(f"a dynamic axis of size 1 is exported with size 2: {error}") from error


def _axis_options(
    call: ExampleCall, axes: Mapping[Axis, str], request: CaptureRequest, exporter: str
) -> dict[str, Any]:
    """The options for these axes, as the exporter takes them."""
    if not axes:
        return {}
    if exporter != TORCHSCRIPT:
        return {"dynamic_shapes": dynamic_shapes(call, axes)}
    # TorchScript refers to inputs by `input_names`.
    own = list(call.tensors())
    given = list(request.options.get("input_names") or ())
    names = dict(zip(own, given + own[len(given) :], strict=False))
    dynamic_axes = {names[name]: dimensions for name, dimensions in axes_by_input(axes).items()}
    outputs = {name.removeprefix("output."): name for name in request.result_names}
    if outputs:
        results = result_axes(call, axes)
        dynamic_axes |= {outputs[name]: dimensions for name, dimensions in results.items() if name in outputs}
    return {"input_names": list(names.values()), "dynamic_axes": dynamic_axes}


def _fixed_axes(call: ExampleCall, axes: Mapping[Axis, str], ranges: Mapping[str, SizeRange]) -> list[str]:
    """The axes that torch leaves dynamic for sizes next to those of the call only, with these sizes."""
    tensors = call.tensors()
    sizes = {name: tensors[tensor].shape[axis] for (tensor, axis), name in axes.items()}
    return [
        f"{name} = {ranges[name]}"
        for name, size in sizes.items()
        if not is_dynamic(ranges.get(name, SizeRange()), size)
    ]


def _fixed_by_forward(call: ExampleCall, axes: Mapping[Axis, str]) -> tuple[str, ...]:
    """A note on the axes for which no other size was found."""
    sizes = [(name, axis) for name, tensor in call.tensors().items() for axis in range(tensor.dim())]
    fixed = [f"{name}:{axis}" for name, axis in sizes if (name, axis) not in axes]
    return (f"fixed, because forward takes no other size of these axes alone: {', '.join(fixed)}",) if fixed else ()


def _notes(
    call: ExampleCall,
    axes: Mapping[Axis, str],
    refused: Sequence[Axis],
    attempts: Sequence[AttemptReport],
    graph: ir.Graph,
) -> Iterator[str]:
    if refused:
        refused_axes = ", ".join(f"{name}:{axis}" for name, axis in refused)
        why = f"{attempts[0].name}: {attempts[0].error}"
        yield f"forward accepts other sizes on these axes, but no exporter gave a right file: {refused_axes} ({why})"
    # torch names the dimensions itself in transformers' exporter and next to arguments that are not tensors. It merges
    # two names that it proves to be one size.
    written = {str(size) for value in graph.inputs for size in value.shape or ()}
    others = [name for name in dict.fromkeys(axes.values()) if name not in written]
    renamed = f" (the file uses other names for {', '.join(others)})" if others else ""
    yield f"dynamic axes: {describe_axes(axes, call)}{renamed}" if axes else "no axis is dynamic"
