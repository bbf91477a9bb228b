"""The dynamo exporter: `torch.onnx.export(dynamo=True)`, called as a user calls it, with the module calls watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modelexport.capture import DYNAMO, Capture, in_one_line, read_module_tree, root_cause
from modelexport.capture.fx.node_owners import find_calls
from modelexport.capture.fx.onnx_sources import dynamic_sizes, onnx_values
from modelexport.capture.fx.original_graph import Export, export_graphs
from modelexport.capture.fx.program_nodes import format_program
from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.fx.traced_values import with_boundaries
from modelexport.errors import UnsupportedLibraryError, find_own_error


def capture_with_dynamo(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)` and record the module call of each node.

    Args:
        model: The model, in the mode in which it is exported.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`.

    Returns:
        The graph before and after optimization, with the recorded calls.
    """

    def export() -> torch.onnx.ONNXProgram | None:
        return torch.onnx.export(
            model, args, None, kwargs=dict(kwargs) or None, dynamo=True, **{"verbose": False, **options}
        )

    return capture_export(model, export, DYNAMO, optimize=bool(options.get("optimize", True)))


def capture_export(model: torch.nn.Module, export: Export, exporter: str, *, optimize: bool) -> Capture:
    """Run `export` and record the module call of each node.

    Args:
        model: The model that is exported.
        export: Exports it with `torch.export` and `torch.onnx`.
        exporter: The name of the exporter.
        optimize: Whether `export` asks torch to optimize the graph.
    """
    tree = read_module_tree(model)
    recorder = TraceRecorder(model, tree)
    failure: Exception | None
    try:
        with recorder.watching():
            graphs = export_graphs(export, exporter, optimize=optimize)
        failure = recorder.failure
    except Exception as error:  # noqa: BLE001  the export is repeated below; its own error is raised there
        own = find_own_error(error)
        if own is not None and not isinstance(own, UnsupportedLibraryError):
            raise own from own.__cause__
        # The hooks may be the reason. If the export fails without them too, that is the error to report.
        graphs = export_graphs(export, exporter, optimize=optimize)
        failure = own or error
    if failure is not None:
        recorder = TraceRecorder(model, tree)
    found = find_calls(graphs.program, recorder, tree)
    return Capture(
        exporter=exporter,
        model=graphs.model,
        original_graph=graphs.original,
        recorded=graphs.attributions(found),
        tree=tree,
        calls=with_boundaries(found.calls, graphs.program, recorder, onnx_values(graphs.program, graphs.original)),
        graph_kind="fx",
        graph_text=lambda: format_program(graphs.program, found.owners),
        dynamic_sizes=dynamic_sizes(graphs.original, graphs.sources),
        notes=(*_lost(recorder, failure), *found.notes, *graphs.notes),
    )


def _lost(recorder: TraceRecorder, failure: Exception | None) -> tuple[str, ...]:
    """Return a note where no module call was seen."""
    if recorder.last_pass is not None:
        return ()
    why = in_one_line(root_cause(failure)) if failure is not None else "torch traced the model without running hooks"
    return (f"module calls could not be watched: {why}; owners come from torch's own record",)
