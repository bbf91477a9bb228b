"""The dynamo exporter: `torch.onnx.export(dynamo=True)`, called as a user calls it, with the module calls watched."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from modelexport.attempt_report import PLAIN, Variant
from modelexport.capture import (
    DYNAMO,
    Capture,
    VariantError,
    find_data_dependence,
    in_one_line,
    read_module_tree,
    root_cause,
)
from modelexport.capture.fx.constant_values import ConstantValues
from modelexport.capture.fx.exported_program import boundaries_by_flow
from modelexport.capture.fx.node_owners import find_calls
from modelexport.capture.fx.original_graph import Export, dynamic_sizes, export_graphs, onnx_values
from modelexport.capture.fx.program_nodes import format_program
from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.fx.traced_values import with_boundaries
from modelexport.capture.size_ranges import size_ranges
from modelexport.capture.source_places import raising_frames
from modelexport.errors import UnsupportedLibraryError, find_own_error
from modelexport.torch_support import exporter_arguments
from modelexport.torch_support.private_export import fake_constants_refused

_NOT_WATCHED = "module calls were not watched, because the exporter failed while hooks watched them"
_STRICT = "torch.export captured the model only in its strict mode, which does not run hooks"
_NOT_SEEN = "the hooks saw no forward pass"
_EVIDENCE = "owners come from torch's own record of the calls, and their inputs and outputs from data flow"


def capture_with_dynamo(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    variant: Variant = PLAIN,
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)` and record the module call of each node.

    Raises:
        VariantError: The exporter failed, and may succeed in another variant.
    """

    def export() -> torch.onnx.ONNXProgram | None:
        given, named = exporter_arguments(args, kwargs)
        return torch.onnx.export(model, given, None, kwargs=named, dynamo=True, **{"verbose": False, **options})

    return capture_export(model, export, DYNAMO, optimize=bool(options.get("optimize", True)), variant=variant)


def capture_export(
    model: torch.nn.Module, export: Export, exporter: str, *, optimize: bool, variant: Variant = PLAIN
) -> Capture:
    """Run `export`, which uses `torch.export` and `torch.onnx`, and record the module call of each node.

    `optimize` says whether it asks torch to optimize the graph.

    Raises:
        VariantError: The exporter failed, and may succeed in another variant.
    """
    tree = read_module_tree(model)
    recorder = TraceRecorder(model, tree)
    constants = None
    if variant.constant_values:
        constants = ConstantValues(model, folded=variant.constants_folded, of_inputs=variant.input_values)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(fake_constants_refused(model))
            if not variant.unwatched:
                stack.enter_context(recorder.watching())
            if variant.without_gradients:
                stack.enter_context(torch.no_grad())
            if constants is not None:
                stack.enter_context(constants.known())
            graphs = export_graphs(export, exporter, optimize=optimize)
    except Exception as error:
        following = _next_variant(variant, error, recorder)
        if following is None:
            raise
        raise VariantError(following) from error
    failure, strict, captured = recorder.failure, recorder.strict, recorder.program
    if failure is not None:
        recorder = TraceRecorder(model, tree)
    program, original = graphs.program, graphs.original
    found = find_calls(program, recorder, tree)
    recorded = graphs.attributions(found)
    notes = (*found.notes, *graphs.notes, *(() if constants is None else constants.notes()))
    if recorder.last_pass is None:
        why = _NOT_WATCHED if variant.unwatched else _STRICT if strict else _NOT_SEEN
        if failure is not None:
            why = f"{_NOT_SEEN} ({in_one_line(failure)})"
        notes = (f"{why}: {_EVIDENCE}", *notes)
        owners = {node: attribution.owner for node, attribution in recorded.items()}
        calls = boundaries_by_flow(graphs, owners, found.calls, program, tree)
    else:
        calls = with_boundaries(found.calls, program, recorder, onnx_values(program, original))
    return Capture(
        exporter=exporter,
        model=graphs.model,
        original_graph=original,
        recorded=recorded,
        tree=tree,
        calls=calls,
        graph_kind="fx",
        graph_text=lambda: format_program(program, found.owners),
        dynamic_sizes=dynamic_sizes(graphs),
        size_ranges=size_ranges(graphs.model, captured or program),
        notes=notes,
        variant="strict" if strict else "",
        fixes_values=variant.input_values,
    )


def _next_variant(variant: Variant, error: Exception, recorder: TraceRecorder) -> Variant | None:
    """Return the variant that may succeed where this one failed, or None."""
    own = find_own_error(error)
    lacks_part = isinstance(own, UnsupportedLibraryError)
    if own is not None and not lacks_part:
        return None
    if not lacks_part and find_data_dependence(error):
        return None if variant.constant_values else dataclasses.replace(variant, constant_values=True)
    if torch.is_grad_enabled() and not variant.without_gradients and _is_from_own_trace(error):
        return dataclasses.replace(variant, without_gradients=True)
    # Hooks can be the reason only where the model's own code failed while torch traced it.
    if variant.unwatched or (recorder.completed and not lacks_part):
        return None
    return dataclasses.replace(variant, unwatched=True)


def _is_from_own_trace(error: Exception) -> bool:
    """Whether torch failed where it ran the nodes of its trace again, to decompose them or to find their types."""
    run_node = inspect.unwrap(torch.fx.Interpreter.run_node).__code__
    return any(frame.f_code is run_node for frame, _ in raising_frames(root_cause(error).__traceback__))
