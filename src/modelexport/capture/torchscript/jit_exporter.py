"""The TorchScript exporter: `torch.onnx.export(dynamo=False)`, with the scope of each node as evidence.

The tracer labels the nodes it records with the modules that are running; `ScopeRecorder` has it label them with the
calls.
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

from modelexport.capture import TORCHSCRIPT, Capture, TracedSide, find_boundaries, read_module_tree
from modelexport.capture.torchscript.jit_graph import GraphWatch, JitNode, watch_graph
from modelexport.capture.torchscript.jit_values import ConstantAddedError, ValueTracker
from modelexport.capture.torchscript.missing_operators import export_despite_missing
from modelexport.capture.torchscript.scope_recorder import ScopeRecorder
from modelexport.capture.torchscript.stack_frames import remove_own_frames, without_own_frames
from modelexport.errors import UnusableOptionError
from modelexport.gc_pause import gc_paused
from modelexport.graph import nodes_of
from modelexport.hierarchy import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree, TensorInfo
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.ownership import with_sharers
from modelexport.storage import ExporterFile
from modelexport.torch_support import buffers_restored, named_arguments, named_results
from modelexport.torch_support.private import flatten, unflatten
from modelexport.torch_support.private_jit import silent_log, weights_apart

# The same, with torch's decompositions of operators that it has no translation for.
DECOMPOSED = "torchscript-decomposed"

# Options of torch.onnx.export that its TorchScript exporter has no use for.
_DYNAMO_ONLY = ("custom_translation_table", "report", "optimize", "verify", "profile", "dump_exported_program")
# The exporter can only write to memory what fits into one protobuf.
_LARGEST_IN_MEMORY = 3 * 2**29


def capture_with_torchscript(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    training: bool = False,
) -> Capture:
    """Export with `torch.onnx.export(dynamo=False)` and gather what ran each node.

    Where it has no translation for an operator, the export is repeated with torch's own decomposition of that one.

    Args:
        model: The model, in the mode it is to be exported in.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`; those for its dynamo exporter alone are left out.
        training: Export the model in the mode it is in. The exporter goes to evaluation mode by itself otherwise.

    Returns:
        The graph before and after folding and fusion with the evidence for its nodes.

    Raises:
        UnusableOptionError: An option or input that this exporter does not take.
    """
    if options.get("dynamic_shapes") is not None:
        raise UnusableOptionError("the TorchScript exporter has no dynamic_shapes.", "Give dynamic_axes instead.")
    tree = read_module_tree(model)
    usable = {name: value for name, value in options.items() if name not in (*_DYNAMO_ONLY, "dynamic_shapes")}
    if training:
        usable["training"] = torch.onnx.TrainingMode.PRESERVE
    # This exporter runs the model on real tensors: on copies, so that a forward may write to its inputs.
    args, kwargs = copy.deepcopy((args, dict(kwargs)))
    with buffers_restored(model):
        capture, decomposed = export_despite_missing(
            lambda: _capture_in_some_form(model, tree, args, kwargs, usable), lambda found: _check(found.model)
        )
    return dataclasses.replace(capture, exporter=DECOMPOSED) if decomposed else capture


def _check(model: ir.Model) -> None:
    """Look whether the types of all tensors are what their readers take: operators put together may disagree."""
    CheckerPass(full_check=True)(model)


def _capture_in_some_form(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    usable: Mapping[str, Any],
) -> Capture:
    try:
        return _export_and_read(model, tree, args, kwargs, usable)
    except Exception:  # noqa: BLE001  tried again below, where it is raised if it is not the form of the call
        # Keyword arguments that the exporter cannot sort into its call, or a result it cannot take apart: as a
        # function of tensors to tensors the model needs neither.
        with _as_function_of_tensors(model, tree, args, kwargs) as form:
            capture = _export_and_read(model, tree, form.tensors, {}, {"input_names": form.names, **usable})
        return dataclasses.replace(capture, calls=form.with_own_names(capture.calls))


def _export_and_read(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    try:
        return _export_and_follow(model, tree, args, kwargs, options, ValueTracker())
    except ConstantAddedError:
        # Looking at the arguments of calls changed the graph. The file must be the exporter's own: once more without.
        return _export_and_follow(model, tree, args, kwargs, options, None)


def _export_and_follow(
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
        watch = stack.enter_context(watch_graph(options.get("opset_version"), recorder.hooks.put_back))
        if tracker is not None:
            stack.enter_context(tracker.watching())
        written = _export(model, args, kwargs, options)
    return _gather(written, watch, recorder, tracker, tree)


@gc_paused()
def _gather(
    written: ExporterFile | onnx.ModelProto,
    watch: GraphWatch,
    recorder: ScopeRecorder,
    tracker: ValueTracker | None,
    tree: ModuleTree,
) -> Capture:
    """What was seen of one export, put together."""
    file = written if isinstance(written, ExporterFile) else None
    final = _graph_of(written.skeleton()) if isinstance(written, ExporterFile) else ir.from_proto(written)
    seen_before = watch.before is not None
    traced = _traced_model(watch) if watch.before is not None else final
    names = _traced_names(watch) if seen_before else watch.names
    recorded = _calls_of(traced, recorder.owners(watch.nodes_before if seen_before else watch.nodes, names))
    recorded_finally = _calls_of(final, recorder.owners(watch.nodes, watch.names)) if seen_before else {}
    calls = recorder.call_tree()
    bereft = _bereft(recorder, watch)
    infos: dict[str, TensorInfo] = {}
    by_flow = calls
    if tracker is None or recorder.overwritten or bereft:
        infos = {names[number]: TensorInfo(*shape) for number, shape in watch.shapes().items() if number in names}
    if tracker is None or recorder.overwritten:
        by_flow = find_boundaries(traced.graph, recorded, calls, _undisturbed(recorder, watch, calls), infos)
    calls = by_flow if tracker is None else recorder.with_boundaries(by_flow, tracker, names)
    return Capture(
        exporter=TORCHSCRIPT,
        model=final,
        file=file,
        traced=traced,
        recorded=with_sharers(traced.graph, recorded, calls, bereft, infos),
        recorded_finally={node: recorded_by_exporter(call) for node, call in recorded_finally.items()},
        tree=tree,
        calls=calls,
        traced_as="jit",
        describe=lambda: _describe(watch, recorder),
    )


def _bereft(recorder: ScopeRecorder, watch: GraphWatch) -> set[CallId]:
    """The calls some of whose nodes became one with equal nodes of others."""
    found = (recorder.call_of(JitNode(scope, ())) for scope in watch.merged_scopes)
    return {call for call in found if call is not None}


def _undisturbed(recorder: ScopeRecorder, watch: GraphWatch, calls: CallTree) -> dict[CallId, TracedSide]:
    """What was seen of the calls whose nodes are all still their own.

    Where equal nodes of several calls became one, data flows past the boundaries that the others had.
    """
    disturbed = {caller for call in _bereft(recorder, watch) for caller in calls.chain(call)}
    return {call: side for call, side in recorder.sides.items() if call not in disturbed or call == ROOT_CALL}


def _calls_of(model: ir.Model, owners: Mapping[str, CallId]) -> dict[ir.Node, CallId]:
    found: dict[ir.Node, CallId] = {}
    for node in nodes_of(model.graph):
        call = next((owners[v.name] for v in node.outputs if v.name is not None and v.name in owners), None)
        if call is not None:
            found[node] = call
    return found


def _export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> ExporterFile | onnx.ModelProto:
    """The file; as a model in memory where it is more than one protobuf can hold."""
    named = dict(kwargs) or None
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    with silent_log():
        if weights <= _LARGEST_IN_MEMORY:
            file = _Sink()
            with weights_apart() as contents:
                torch.onnx.export(model, args, file, kwargs=named, dynamo=False, **options)  # type: ignore[arg-type]
            written = ExporterFile(file.written, contents)
            return without_own_frames(written) if options.get("verbose") else written
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(model, args, str(path), kwargs=named, dynamo=False, **options)
            model = onnx.load_model(path)
            remove_own_frames(model)
            return model


class _Sink:
    """A file that keeps what is written to it as it is given: `io.BytesIO` would copy the weights once more."""

    written = b""

    def write(self, data: bytes) -> int:
        self.written = self.written + data if self.written else data
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


@dataclasses.dataclass
class _FunctionOfTensors:
    """A model as a function of tensors: what it is given, and the model's own names for what goes in and out."""

    tensors: tuple[torch.Tensor, ...]
    names: list[str]
    results: list[str] = dataclasses.field(default_factory=list)

    def with_own_names(self, calls: CallTree) -> CallTree:
        """`calls` with the root's boundary under the names of the model's own arguments and results."""
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
    """`forward` as a function of just the given tensors that returns just tensors, for the time of the context.

    The tensors are in the order of forward's arguments, as in every other call that the exporter traces: names of
    inputs are given by position.
    """
    order = {argument.name: place for place, argument in enumerate(tree[""].forward_arguments)}
    kwargs = dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))
    inputs = list(named_arguments(tree[""].forward_arguments, args, kwargs))
    leaves, structure = flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(places) != len(inputs):
        raise UnusableOptionError(
            "the example inputs hold tensors inside objects that the TorchScript exporter cannot take apart.",
            "Give tensors, tuples, lists and dicts.",
        )
    original = model.forward
    own = model.__dict__.get("forward")

    def forward(*tensors: torch.Tensor) -> Any:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        given, named = unflatten(values, structure)
        results = dict(named_results(original(*given, **named)))
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


def _graph_of(model: onnx.ModelProto) -> ir.Model:
    """The graph of a model that is not written: who made what does not depend on inferred shapes."""
    model.graph.ClearField("value_info")
    return ir.from_proto(model)


def _traced_names(watch: GraphWatch) -> dict[int, str]:
    """The name of each value of the first graph: its final one, or one that no final value has."""
    return {number: watch.names.get(number, f"traced:{name}") for number, name in watch.names_before.items()}


def _traced_model(watch: GraphWatch) -> ir.Model:
    """The first graph with the names its values have at the end, and with weights for weights."""
    if watch.before is None:
        raise ValueError("the graph was not seen before it was folded")
    traced = _graph_of(watch.before)
    renamed = _traced_names(watch)
    names = {name: renamed[number] for number, name in watch.names_before.items()}
    graph = traced.graph
    weights = [value for value in graph.inputs if value.name in watch.parameters]
    for value in weights:
        graph.inputs.remove(value)
    values = [*graph.inputs, *weights, *(v for node in nodes_of(graph) for v in node.outputs)]
    for value in values:
        if value.name in names:
            value.name = names[value.name]
    return traced


def _describe(watch: GraphWatch, recorder: ScopeRecorder) -> str:
    """The traced graph as text, each node behind the call that ran it."""
    lines = []
    for node, text in watch.texts():
        call = recorder.call_of(node)
        lines.append(f"[{'' if call is None else str(call) or '(root)'}] {text}")
    return "\n".join(lines) + "\n"
