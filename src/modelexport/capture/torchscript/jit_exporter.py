"""The TorchScript exporter: `torch.onnx.export(dynamo=False)`, with the scope of each node as evidence.

The tracer gives each node the scope of the modules that are running. `ScopeRecorder` adds the numbers of the calls to
these scopes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import CheckerPass

from modelexport.capture import TORCHSCRIPT, CallTensors, Capture, find_boundaries, read_module_tree
from modelexport.capture.torchscript.jit_graph import GraphWatch, JitNode, watch_graph
from modelexport.capture.torchscript.missing_operators import export_despite_missing
from modelexport.capture.torchscript.scope_recorder import ScopeRecorder
from modelexport.capture.torchscript.stack_traces import remove_package_frames, without_package_frames
from modelexport.capture.torchscript.unwatched_export import capture_unwatched
from modelexport.capture.torchscript.value_tracker import ConstantAddedError, ValueTracker
from modelexport.errors import UnsupportedLibraryError, UnusableOptionError, find_own_error
from modelexport.gc_pause import gc_paused
from modelexport.graph import nodes_of
from modelexport.hierarchy import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree, TensorInfo
from modelexport.hierarchy.confidence import recorded_before_optimization, recorded_by_exporter
from modelexport.ownership import with_sharers
from modelexport.storage import ExporterFile
from modelexport.torch_support import buffers_restored, named_arguments, named_results
from modelexport.torch_support.private import flatten, unflatten
from modelexport.torch_support.private_jit import silent_log, weights_apart

# The name of the exporter where torch's decompositions replaced operators that it cannot translate.
DECOMPOSED = "torchscript-decomposed"

# Options of torch.onnx.export that its TorchScript exporter ignores.
_DYNAMO_ONLY = ("custom_translation_table", "report", "optimize", "verify", "profile", "dump_exported_program")
# The exporter can write a file to memory only if it fits into one protobuf message.
_LARGEST_IN_MEMORY = 3 * 2**29
_ORIGINAL_NOT_SEEN = (
    "the graph before constant folding and fusion was not seen: owners are those of the final graph, where nodes may "
    "have been fused or merged"
)


def capture_with_torchscript(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    training: bool = False,
) -> Capture:
    """Export with `torch.onnx.export(dynamo=False)` and record the module call of each node.

    Where it cannot translate an operator, the export is repeated with torch's own decomposition of that operator.

    Args:
        model: The model, in the mode in which it is exported.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`; those that only its dynamo exporter has are ignored.
        training: Export the model in its current mode. By default the exporter switches to evaluation mode.

    Returns:
        The graph before and after constant folding and fusion, with the recorded calls.

    Raises:
        UnusableOptionError: An option or input that this exporter does not support.
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
    with buffers_restored(model):
        capture, decomposed = export_despite_missing(
            lambda: _capture_watched_or_not(model, tree, args, kwargs, usable), lambda found: _check_types(found.model)
        )
    return dataclasses.replace(capture, exporter=DECOMPOSED) if decomposed else capture


def _check_types(model: ir.Model) -> None:
    """Check that each tensor has a type that its consumers accept: decompositions may mix types."""
    CheckerPass(full_check=True)(model)


def _capture_watched_or_not(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    usable: Mapping[str, Any],
) -> Capture:
    """Export while watching module calls, or without where torch lacks a part for that."""
    try:
        return _capture_in_either_form(model, tree, args, kwargs, usable)
    except Exception as error:
        lost = find_own_error(error)
        if not isinstance(lost, UnsupportedLibraryError):
            raise
    return capture_unwatched(model, tree, args, kwargs, usable, lost)


def _capture_in_either_form(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    usable: Mapping[str, Any],
) -> Capture:
    """Export the model as it is; where the exporter fails, as a function from tensors to tensors.

    The exporter cannot order every set of keyword arguments, and cannot flatten every result. A function from tensors
    to tensors has neither.
    """
    try:
        return _capture_with_values(model, tree, args, kwargs, usable)
    except Exception as error:
        if find_own_error(error) is not None:
            raise
        with _as_function_of_tensors(model, tree, args, kwargs) as form:
            capture = _capture_with_values(model, tree, form.tensors, {}, {"input_names": form.names, **usable})
        return dataclasses.replace(capture, calls=form.with_own_names(capture.calls))


def _capture_with_values(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export while tracking the boundary tensors of calls, or without where that changes the graph."""
    try:
        return _capture(model, tree, args, kwargs, options, ValueTracker())
    except ConstantAddedError:
        # Looking up a tensor added a constant to the graph, and the file must be that of the exporter alone.
        return _capture(model, tree, args, kwargs, options, None)


def _capture(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    tracker: ValueTracker | None,
) -> Capture:
    inputs = [tensor for _, tensor in named_arguments(tree[""].forward_arguments, args, kwargs)]
    recorder = ScopeRecorder(model, tree, tracker, inputs)
    with contextlib.ExitStack() as stack:
        stack.enter_context(recorder.watching())
        folds = bool(options.get("do_constant_folding", True))
        fuses = folds and "training" not in options
        opset = options.get("opset_version")
        watch = stack.enter_context(watch_graph(opset, recorder.hooks.restore, folds=folds, fuses=fuses))
        if tracker is not None:
            stack.enter_context(tracker.watching())
        written = _export(model, args, kwargs, options)
    capture = _build_capture(written, watch, recorder, tracker, tree)
    return _without_original(capture) if folds and watch.original is None else capture


def _without_original(capture: Capture) -> Capture:
    """Return a capture of a graph that was folded and fused before it was seen: its owners are not certain."""
    return dataclasses.replace(
        capture,
        recorded={node: recorded_before_optimization(found.owner) for node, found in capture.recorded.items()},
        notes=(*capture.notes, _ORIGINAL_NOT_SEEN),
    )


@gc_paused()
def _build_capture(
    written: ExporterFile | onnx.ModelProto,
    watch: GraphWatch,
    recorder: ScopeRecorder,
    tracker: ValueTracker | None,
    tree: ModuleTree,
) -> Capture:
    file = written if isinstance(written, ExporterFile) else None
    model = _without_shapes(written.skeleton()) if isinstance(written, ExporterFile) else ir.from_proto(written)
    was_seen = watch.original is not None
    original = _original_graph(watch.original, watch) if watch.original is not None else model
    names = _original_names(watch) if was_seen else watch.names
    recorded = _onnx_owners(original, recorder.owners(watch.original_nodes if was_seen else watch.nodes, names))
    recorded_in_model = _onnx_owners(model, recorder.owners(watch.nodes, watch.names)) if was_seen else {}
    calls = recorder.call_tree()
    notes: tuple[str, ...] = ()
    if tracker is not None and recorder.finds_no_output(tracker):
        tracker = None
        notes = ("the inputs and outputs of module calls could not be tracked: they come from data flow",)
    merged = _calls_with_merged_nodes(recorder, watch)
    infos: dict[str, TensorInfo] = {}
    by_flow = calls
    if tracker is None or recorder.overwritten or merged:
        infos = {names[number]: TensorInfo(*shape) for number, shape in watch.shapes().items() if number in names}
    if tracker is None or recorder.overwritten:
        by_flow = find_boundaries(original.graph, recorded, calls, _reliable_tensors(recorder, merged, calls), infos)
    calls = by_flow if tracker is None else recorder.with_boundaries(by_flow, tracker, names)
    return Capture(
        exporter=TORCHSCRIPT,
        model=model,
        file=file,
        original_graph=original,
        recorded=with_sharers(original.graph, recorded, calls, merged, infos),
        recorded_in_model={node: recorded_by_exporter(call) for node, call in recorded_in_model.items()},
        tree=tree,
        calls=calls,
        graph_kind="jit",
        graph_text=lambda: _format_graph(watch, recorder),
        notes=notes,
    )


def _calls_with_merged_nodes(recorder: ScopeRecorder, watch: GraphWatch) -> set[CallId]:
    """Return the calls that lost nodes because equal nodes of other calls replaced them."""
    found = (recorder.call_of(JitNode(scope, ())) for scope in watch.merged_scopes)
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


def _export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> ExporterFile | onnx.ModelProto:
    """Return the file; the loaded model where it does not fit into one protobuf message."""
    named = dict(kwargs) or None
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    with silent_log():
        if weights <= _LARGEST_IN_MEMORY:
            sink = _Sink()
            with weights_apart() as contents:
                torch.onnx.export(model, args, sink, kwargs=named, dynamo=False, **options)  # type: ignore[arg-type]
            written = ExporterFile(sink.written, contents)
            return without_package_frames(written) if options.get("verbose") else written
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(model, args, str(path), kwargs=named, dynamo=False, **options)
            model = onnx.load_model(path)
            remove_package_frames(model)
            return model


class _Sink:
    """A file in memory that does not copy the bytes that are written to it, as `io.BytesIO` does."""

    written = b""

    def write(self, data: bytes) -> int:
        self.written = self.written + data if self.written else data
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


@dataclasses.dataclass
class _FunctionOfTensors:
    """A model as a function from tensors to tensors.

    Attributes:
        tensors: The example inputs.
        names: The model's names of the inputs.
        results: The model's names of the results.
    """

    tensors: tuple[torch.Tensor, ...]
    names: list[str]
    results: list[str] = dataclasses.field(default_factory=list)

    def with_own_names(self, calls: CallTree) -> CallTree:
        """Return the calls, with the model's own names of arguments and results for the root."""
        root = calls[ROOT_CALL]

        def named(boundary: tuple[BoundaryTensor, ...], names: list[str]) -> tuple[BoundaryTensor, ...]:
            if len(boundary) != len(names):
                return boundary
            return tuple(BoundaryTensor(n, b.tensor, b.info) for n, b in zip(names, boundary, strict=True))

        own = ModuleCall(root.path, root.index, None, named(root.inputs, self.names), named(root.outputs, self.results))
        return CallTree({call.id: own if call.id == ROOT_CALL else call for call in calls})


@contextlib.contextmanager
def _as_function_of_tensors(
    model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[_FunctionOfTensors]:
    """Replace `forward` within the context by a function that takes and returns tensors only.

    The tensors are in the order of forward's arguments, as in every other call that the exporter traces: it assigns the
    names of inputs by position.
    """
    order = {argument.name: position for position, argument in enumerate(tree[""].forward_arguments)}
    kwargs = dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))
    inputs = list(named_arguments(tree[""].forward_arguments, args, kwargs))
    leaves, structure = flatten((args, kwargs))
    positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(positions) != len(inputs):
        raise UnusableOptionError(
            "the example inputs contain tensors inside objects that the TorchScript exporter cannot flatten.",
            "Pass tensors, tuples, lists and dicts.",
        )
    original = model.forward
    own = model.__dict__.get("forward")

    def forward(*tensors: torch.Tensor) -> Any:
        values = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            values[position] = tensor
        new_args, new_kwargs = unflatten(values, structure)
        results = dict(named_results(original(*new_args, **new_kwargs)))
        if not results:
            raise UnusableOptionError("forward returns no tensor, and a graph needs outputs.", "Return tensors.")
        form.results = list(results)
        found = list(results.values())
        return found[0] if len(found) == 1 else tuple(found)

    form = _FunctionOfTensors(tuple(tensor for _, tensor in inputs), [name for name, _ in inputs])
    model.forward = forward
    try:
        yield form
    finally:
        if own is None:
            del model.__dict__["forward"]
        else:
            model.__dict__["forward"] = own


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
