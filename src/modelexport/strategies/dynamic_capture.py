"""Capture a model, with dynamic axes: those the user names, or of those found the ones that torch can export."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
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
    axes_kept_by_torch,
    check_axes,
    check_forward,
    describe_axes,
    dynamic_shapes,
    find_axes,
    library_output,
    merge_equal_axes,
    result_axes,
    with_sizes_above_one,
)
from modelexport.display import counted
from modelexport.errors import ExportError, InputError
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
    refused: list[Axis] = []
    while True:
        exported = with_sizes_above_one(call, axes)
        axis_options = functools.partial(_axis_options, exported, axes, request)
        wanted = dataclasses.replace(request, args=exported.args, kwargs=exported.kwargs, axis_options=axis_options)
        try:
            # Fewer axes are tried before a last resort.
            last_resorts = dynamic != AUTO or not axes
            for capture in attempts.captures(candidates, wanted, _described(axes), last_resorts=last_resorts):
                notes = tuple(_notes(call, axes, refused, capture.model.graph))
                yield Captured(capture, attempts.reports[-1], axes_by_input(axes), notes)
        except ExportError as error:
            if dynamic != AUTO or not axes:
                raise
            if attempts.is_time_up:
                attempts.skip(candidates, "fewer dynamic axes")
                error.attempts = tuple(attempts.reports)
                raise
        if dynamic != AUTO or not axes or attempts.is_time_up:
            return
        fewer = _fewer(exported, axes, candidates[0], attempts)
        refused += [axis for axis in axes if axis not in fewer]
        axes = fewer


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


def _fewer(call: ExampleCall, axes: Mapping[Axis, str], candidate: Candidate, attempts: Attempts) -> dict[Axis, str]:
    """The axes to try next after torch failed: the same with more of them equal, then a part of them, then none."""
    tied = merge_equal_axes(call, axes)
    if len(set(tied.values())) < len(set(axes.values())):
        return tied
    started = time.perf_counter()
    with library_output() as printed:
        kept = axes_kept_by_torch(call, axes)
    found = "fails" if kept is None else f"keeps {len(kept)} of {counted(len(axes), 'axis', 'axes')}"
    result = f"a question to torch.export, which {found}: its graph is not written"
    seconds = time.perf_counter() - started
    attempts.record(candidate, "torch.export with Dim.AUTO", result, seconds, printed=printed)
    if kept is not None and len(kept) < len(axes):
        return kept
    batch = {axis: name for axis, name in axes.items() if name == BATCH}
    return batch if len(batch) < len(axes) else {}


def _notes(call: ExampleCall, axes: Mapping[Axis, str], refused: Sequence[Axis], graph: ir.Graph) -> Iterator[str]:
    if refused:
        refused_axes = ", ".join(f"{name}:{axis}" for name, axis in refused)
        yield f"forward accepts other sizes on these axes, but torch cannot export them: {refused_axes}"
    # torch names the dimensions itself in transformers' exporter and next to arguments that are not tensors. It merges
    # two names that it proves to be one size.
    written = {str(size) for value in graph.inputs for size in value.shape or ()}
    others = [name for name in dict.fromkeys(axes.values()) if name not in written]
    renamed = f" (the file uses other names for {', '.join(others)})" if others else ""
    yield f"dynamic axes: {describe_axes(axes, call)}{renamed}" if axes else "no axis is dynamic"
