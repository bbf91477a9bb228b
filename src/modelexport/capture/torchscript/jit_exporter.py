"""The TorchScript exporter: `torch.onnx.export(dynamo=False)`, with the scope of each node as evidence.

The tracer gives each node the scope of the modules that are running. `ScopeRecorder` adds the numbers of the calls to
these scopes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import CheckerPass

from modelexport.attempt_report import PLAIN, Variant
from modelexport.capture import (
    TORCHSCRIPT,
    CallTensors,
    Capture,
    VariantError,
    find_boundaries,
    in_one_line,
    read_module_tree,
)
from modelexport.capture.torchscript.exporter_file import export_file
from modelexport.capture.torchscript.function_of_tensors import as_function_of_tensors
from modelexport.capture.torchscript.fused_nodes import FusionWatch
from modelexport.capture.torchscript.jit_graph import LARGEST_COMPARED, GraphWatch, JitNode, constant_key, watch_graph
from modelexport.capture.torchscript.missing_operators import Decomposing, missing_operator
from modelexport.capture.torchscript.name_scopes import read_name_scopes
from modelexport.capture.torchscript.scope_recorder import ScopeRecorder
from modelexport.capture.torchscript.value_tracker import ConstantAddedError, ValueTracker
from modelexport.errors import UnsupportedLibraryError, UnusableOptionError, find_own_error
from modelexport.gc_pause import gc_paused
from modelexport.graph import nodes_of
from modelexport.hierarchy import ROOT_CALL, Attribution, CallId, CallTree, Kind, ModuleTree, TensorInfo
from modelexport.hierarchy.confidence import fused, recorded_before_optimization, recorded_by_exporter, returned_by
from modelexport.ownership import with_sharers
from modelexport.storage import ExporterFile
from modelexport.torch_support import buffers_restored, named_arguments

# The name of the exporter where torch's decompositions replaced operators that it cannot translate.
DECOMPOSED = "torchscript-decomposed"

# Options of torch.onnx.export that its TorchScript exporter ignores.
_DYNAMO_ONLY = ("custom_translation_table", "report", "optimize", "verify", "profile", "dump_exported_program")
_ORIGINAL_NOT_SEEN = (
    "the graph before torch's passes was not seen: owners come from the scopes in the final graph, where nodes may "
    "have been fused or folded since the trace; export with do_constant_folding=False for exact owners"
)
_CALLS_NOT_SEEN = (
    "module calls could not be watched: {}; owners come from the names of nodes, and the inputs and outputs of calls "
    "are unknown"
)
_BOUNDARIES_BY_FLOW = (
    "inputs and outputs of module calls come from data flow: looking them up in the trace would change the graph"
)


def capture_with_torchscript(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    training: bool = False,
    variant: Variant = PLAIN,
    boundaries: bool = True,
) -> Capture:
    """Export with `torch.onnx.export(dynamo=False)` and record the module call of each node.

    The options that only torch's dynamo exporter has are ignored. `training` exports the model in its current mode; by
    default the exporter switches to evaluation mode. `boundaries` says whether to find the boundary tensors of calls.

    Raises:
        UnusableOptionError: An option or input that this exporter does not support.
        VariantError: The exporter failed, and may succeed in another variant.
    """
    if options.get("dynamic_shapes") is not None:
        raise UnusableOptionError(
            "the TorchScript exporter has no option dynamic_shapes.", "Give dynamic_axes instead."
        )
    tree = read_module_tree(model)
    usable = {name: value for name, value in options.items() if name not in (*_DYNAMO_ONLY, "dynamic_shapes")}
    if training:
        usable["training"] = torch.onnx.TrainingMode.PRESERVE
    # This exporter runs the model on real tensors. Copies, because forward may write into its inputs.
    args, kwargs = copy.deepcopy((args, dict(kwargs)))
    tracker = ValueTracker() if boundaries and not variant.unwatched else None
    try:
        with buffers_restored(model), contextlib.ExitStack() as stack:
            if variant.decomposed:
                stack.enter_context(Decomposing(variant.decomposed))
            if not variant.tensors_only:
                capture = _capture(model, tree, args, kwargs, usable, tracker)
            else:
                form = stack.enter_context(as_function_of_tensors(model, tree, args, kwargs))
                named = {"input_names": form.names, **usable}
                capture = _capture(model, tree, form.tensors, {}, named, tracker)
                capture = dataclasses.replace(capture, calls=form.with_own_names(capture.calls))
    except Exception as error:
        following = _next_variant(variant, error)
        if following is None:
            raise
        raise VariantError(following) from error
    if boundaries and variant.unwatched:
        capture = dataclasses.replace(capture, notes=(*capture.notes, _BOUNDARIES_BY_FLOW))
    if variant.decomposed:
        _check_types(capture.model, variant)
        missing = ", ".join(variant.decomposed)
        substituted = f"the exporter cannot translate {missing}: the graph has torch's decompositions"
        capture = dataclasses.replace(capture, exporter=DECOMPOSED, notes=(*capture.notes, substituted))
    return capture


def _next_variant(variant: Variant, error: Exception) -> Variant | None:
    """Return the variant that may succeed where this one failed, or None."""
    own = find_own_error(error)
    if own is not None:
        return dataclasses.replace(variant, unwatched=True) if isinstance(own, ConstantAddedError) else None
    operator = missing_operator(error)
    if operator is not None:
        decomposed = (*variant.decomposed, operator)
        return None if operator in variant.decomposed else dataclasses.replace(variant, decomposed=decomposed)
    return None if variant.tensors_only else dataclasses.replace(variant, tensors_only=True)


def _check_types(model: ir.Model, variant: Variant) -> None:
    """Check that each tensor has a type that its consumers accept: decompositions may mix types."""
    try:
        CheckerPass(full_check=True)(model)
    except Exception as error:
        # onnx_ir raises its own error from that of the checker.
        raise UnusableOptionError(
            f"the graph {variant} is not a valid ONNX model: {in_one_line(error.__cause__ or error)}.",
            "Use operators that the exporter can translate.",
        ) from error


def _capture(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    tracker: ValueTracker | None,
) -> Capture:
    """Export while watching module calls, or without where torch lacks a part for that."""
    try:
        inputs = [tensor for _, tensor in named_arguments(tree[""].forward_arguments, args, kwargs)]
        recorder = ScopeRecorder(model, tree, tracker, inputs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(recorder.watching())
            folds = bool(options.get("do_constant_folding", True))
            fuses = folds and "training" not in options
            opset = options.get("opset_version")
            watch = stack.enter_context(watch_graph(opset, recorder.hooks.restore, folds=folds, fuses=fuses))
            fusions = FusionWatch()
            stack.enter_context(fusions.watching())
            if tracker is not None:
                stack.enter_context(tracker.watching())
            written = export_file(model, args, kwargs, options)
        return _build_capture(written, watch, recorder, tracker, fusions, tree)
    except Exception as error:
        lost = find_own_error(error)
        if not isinstance(lost, UnsupportedLibraryError):
            raise
    written = export_file(model, args, kwargs, options, weights_inline=True)
    graph, file = _graph_of(written)
    recorded, calls = read_name_scopes(graph.graph, tree)
    return Capture(
        exporter=TORCHSCRIPT,
        model=graph,
        file=file,
        original_graph=graph,
        recorded=recorded,
        tree=tree,
        calls=calls,
        graph_kind="jit",
        graph_text=lambda: "the graph was not seen\n",
        notes=(_CALLS_NOT_SEEN.format(lost),),
    )


@gc_paused()
def _build_capture(
    written: ExporterFile | onnx.ModelProto,
    watch: GraphWatch,
    recorder: ScopeRecorder,
    tracker: ValueTracker | None,
    fusions: FusionWatch,
    tree: ModuleTree,
) -> Capture:
    model, file = _graph_of(written)
    was_seen = watch.original is not None
    # Where torch runs none of the passes that fold and fuse, the final graph is the original one.
    was_rewritten = not was_seen and bool(watch.original_nodes)
    original = _original_graph(watch.original, watch) if watch.original is not None else model
    names = _original_names(watch) if was_seen else watch.names
    recorded = _onnx_owners(original, recorder.owners(watch.original_nodes if was_seen else watch.nodes, names))
    recorded_in_model = _onnx_owners(model, recorder.owners(watch.nodes, watch.names)) if was_seen else {}
    calls = recorder.call_tree()
    notes = (_ORIGINAL_NOT_SEEN,) if was_rewritten else ()
    if tracker is not None and recorder.finds_no_output(tracker):
        tracker = None
        notes = (*notes, "the inputs and outputs of module calls could not be tracked: they come from data flow")
    # The calls that lost nodes because equal nodes of other calls replaced them.
    merged = _calls_of(recorder, watch.merged_scopes)
    infos: dict[str, TensorInfo] = {}
    by_flow = calls
    if tracker is None or recorder.overwritten or merged:
        infos = {names[number]: TensorInfo(*shape) for number, shape in watch.shapes().items() if number in names}
    if tracker is None or recorder.overwritten:
        by_flow = find_boundaries(original.graph, recorded, calls, _reliable_tensors(recorder, merged, calls), infos)
    calls = by_flow if tracker is None else recorder.with_boundaries(by_flow, tracker, names)
    constants = {node: _calls_of(recorder, s) for node, s in _lost_constants(original.graph, watch).items()}
    attributions = with_sharers(original.graph, recorded, calls, merged, constants, infos)
    replaced = {names[n]: _calls_of(recorder, scopes) for n, scopes in fusions.scopes.items() if n in names}
    attributions |= _fused_nodes(attributions, replaced)
    attributions |= _returned_nodes(original.graph, attributions, calls)
    return Capture(
        exporter=TORCHSCRIPT,
        model=model,
        file=file,
        original_graph=original,
        recorded=_not_exact(attributions) if was_rewritten else attributions,
        recorded_in_model={node: recorded_by_exporter(call) for node, call in recorded_in_model.items()},
        tree=tree,
        calls=calls,
        graph_kind="jit",
        graph_text=lambda: _format_graph(watch, recorder),
        notes=notes,
    )


def _lost_constants(graph: ir.Graph, watch: GraphWatch) -> dict[ir.Node, set[str]]:
    """Return for constants of the graph the scopes that lost a constant of the same value."""
    found: dict[ir.Node, set[str]] = {}
    for node in graph:
        constant = ir.convenience.get_const_tensor(node.outputs[0]) if node.outputs and not node.inputs else None
        content = constant.numpy() if constant is not None and constant.size <= LARGEST_COMPARED else None
        if content is not None and content.dtype.kind in "biuf":
            key = constant_key(torch.from_numpy(content.astype(np.float32)))
            found[node] = watch.merged_constants.get(key, set())
    return found


def _fused_nodes(
    known: Mapping[ir.Node, Attribution], replaced: Mapping[str, set[CallId]]
) -> dict[ir.Node, Attribution]:
    """Return the attributions of the nodes that replace nodes of other calls, given by the name of an output."""
    found: dict[ir.Node, Attribution] = {}
    for node, own in known.items():
        others = {call for value in node.outputs for call in replaced.get(value.name or "", ())}
        if not others.issubset({own.owner, *own.contributors}):
            found[node] = fused(own, {*own.contributors, *others})
    return found


def _returned_nodes(
    graph: ir.Graph, known: Mapping[ir.Node, Attribution], calls: CallTree
) -> dict[ir.Node, Attribution]:
    """Return attributions of nodes without a scope whose outputs a call returns: a scripted function has no scopes."""
    returned: dict[str | None, CallId] = {}
    for call in calls:
        received = {tensor.tensor for tensor in call.inputs}
        if None not in received:
            # A callee begins after its caller, and takes precedence.
            returned.update(
                {t.tensor: call.id for t in call.outputs if t.tensor is not None and t.tensor not in received}
            )
    outputs = ((node, value.name) for node in graph if node not in known for value in node.outputs)
    return {node: returned_by(returned[name]) for node, name in outputs if name in returned}


def _not_exact(attributions: Mapping[ir.Node, Attribution]) -> dict[ir.Node, Attribution]:
    """Return the attributions of a graph that torch rewrote unseen: a scope names one of the calls of a node."""
    return {
        node: recorded_before_optimization(found.owner) if found.kind is Kind.EXACT else found
        for node, found in attributions.items()
    }


def _calls_of(recorder: ScopeRecorder, scopes: Iterable[str]) -> set[CallId]:
    found = (recorder.call_of(JitNode(scope, ())) for scope in scopes)
    return {call for call in found if call is not None}


def _reliable_tensors(recorder: ScopeRecorder, merged: set[CallId], calls: CallTree) -> dict[CallId, CallTensors]:
    """Return the tensors of the calls that lost no nodes: where nodes were merged, data bypasses call boundaries."""
    unreliable = {caller for call in merged for caller in calls.chain(call)}
    return {call: side for call, side in recorder.tensors.items() if call not in unreliable or call == ROOT_CALL}


def _onnx_owners(model: ir.Model, owners: Mapping[str, CallId]) -> dict[ir.Node, CallId]:
    found: dict[ir.Node, CallId] = {}
    for node in nodes_of(model.graph):
        call = next((owners[v.name] for v in node.outputs if v.name is not None and v.name in owners), None)
        if call is not None:
            found[node] = call
    return found


def _graph_of(written: ExporterFile | onnx.ModelProto) -> tuple[ir.Model, ExporterFile | None]:
    if isinstance(written, ExporterFile):
        return _without_shapes(written.skeleton()), written
    return ir.from_proto(written), None


def _without_shapes(model: onnx.ModelProto) -> ir.Model:
    """Return the graph without inferred shapes, which attribution does not need."""
    model.graph.ClearField("value_info")
    return ir.from_proto(model)


def _original_names(watch: GraphWatch) -> dict[int, str]:
    """Return the name of each value of the original graph: its final name, or one that no final value has."""
    return {number: watch.names.get(number, f"traced:{name}") for number, name in watch.original_names.items()}


def _original_graph(proto: onnx.ModelProto, watch: GraphWatch) -> ir.Model:
    """Return the original graph with the final names of its values, and without weights among its inputs."""
    original = _without_shapes(proto)
    renamed = _original_names(watch)
    names = {name: renamed[number] for number, name in watch.original_names.items()}
    graph = original.graph
    weights = [value for value in graph.inputs if value.name in watch.parameters]
    for value in weights:
        graph.inputs.remove(value)
    values = [*graph.inputs, *weights, *(v for node in nodes_of(graph) for v in node.outputs)]
    for value in values:
        if value.name in names:
            value.name = names[value.name]
    return original


def _format_graph(watch: GraphWatch, recorder: ScopeRecorder) -> str:
    """Return the original graph as text, each node with the call that ran it."""
    lines = []
    for node, text in watch.texts():
        call = recorder.call_of(node)
        lines.append(f"[{'' if call is None else str(call) or '(root)'}] {text}")
    return "\n".join(lines) + "\n"
