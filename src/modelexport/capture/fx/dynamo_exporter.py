"""The dynamo exporter: `torch.onnx.export(dynamo=True)`, called as a user calls it, with the module calls watched."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from modelexport.attempt_report import Variant
from modelexport.capture import DYNAMO, Capture, VariantError, find_data_dependence, read_module_tree
from modelexport.capture.fx.exported_program import boundaries_by_flow
from modelexport.capture.fx.node_owners import find_calls
from modelexport.capture.fx.onnx_sources import FxSources, dynamic_sizes, onnx_owners, onnx_values
from modelexport.capture.fx.original_graph import Export, ExportedGraphs, export_graphs
from modelexport.capture.fx.program_nodes import format_program
from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.fx.traced_values import with_boundaries
from modelexport.errors import find_own_error
from modelexport.hierarchy import ModuleTree
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
    *,
    unwatched: bool = False,
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)` and record the module call of each node.

    Args:
        model: The model, in the mode in which it is exported.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`.
        unwatched: Do not watch the module calls with hooks.

    Returns:
        The graph before and after optimization, with the recorded calls.

    Raises:
        VariantError: The exporter failed, and may succeed unwatched.
    """

    def export() -> torch.onnx.ONNXProgram | None:
        given, named = exporter_arguments(args, kwargs)
        return torch.onnx.export(model, given, None, kwargs=named, dynamo=True, **{"verbose": False, **options})

    return capture_export(model, export, DYNAMO, optimize=bool(options.get("optimize", True)), unwatched=unwatched)


def capture_export(
    model: torch.nn.Module, export: Export, exporter: str, *, optimize: bool, unwatched: bool = False
) -> Capture:
    """Run `export` and record the module call of each node.

    Args:
        model: The model that is exported.
        export: Exports it with `torch.export` and `torch.onnx`.
        exporter: The name of the exporter.
        optimize: Whether `export` asks torch to optimize the graph.
        unwatched: Do not watch the module calls with hooks.

    Raises:
        VariantError: The exporter failed, and may succeed unwatched.
    """
    tree = read_module_tree(model)
    recorder = TraceRecorder(model, tree)
    try:
        with fake_constants_refused(model), contextlib.nullcontext() if unwatched else recorder.watching():
            graphs = export_graphs(export, exporter, optimize=optimize)
    except Exception as error:
        # Hooks can be the reason only where the model's own code failed while torch traced it.
        if unwatched or recorder.completed or find_data_dependence(error) or find_own_error(error):
            raise
        raise VariantError(Variant(unwatched=True)) from error
    return _capture(exporter, graphs, recorder, tree, unwatched=unwatched)


def _capture(
    exporter: str, graphs: ExportedGraphs, recorder: TraceRecorder, tree: ModuleTree, *, unwatched: bool
) -> Capture:
    program, original = graphs.program, graphs.original
    sources = FxSources(program)
    found = find_calls(program, recorder, tree)
    owners = onnx_owners(original, found.owners, sources)
    notes = graphs.notes
    if recorder.last_pass is None:
        why = _NOT_WATCHED if unwatched else _STRICT if recorder.strict else _NOT_SEEN
        notes = (f"{why}: {_EVIDENCE}", *notes)
        calls = boundaries_by_flow(graphs, owners, found.calls, program, tree)
    else:
        calls = with_boundaries(found.calls, program, recorder, onnx_values(program, original))
    return Capture(
        exporter=exporter,
        model=graphs.model,
        original_graph=original,
        recorded=graphs.attributions(owners),
        tree=tree,
        calls=calls,
        graph_kind="fx",
        graph_text=lambda: format_program(program, found.owners),
        dynamic_sizes=dynamic_sizes(original, sources),
        notes=notes,
        variant="strict" if recorder.strict else "",
    )
