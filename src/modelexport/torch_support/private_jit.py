"""Private parts of TorchScript tracing and of torch's TorchScript exporter, each behind one function. See `private`.

The exporter has no public way to see its graph on the way to ONNX: its passes are functions of `torch._C`, which are
called through ours for the time of an export.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any

import onnx

from modelexport.torch_support.private import called_through, find_part, fixed_part, missing_part

# A graph of TorchScript, a block in one of its nodes, a node, a value. Their classes are private and hardly typed.
JitGraph = Any
JitBlock = Any
JitObject = Any


class JitPass(enum.StrEnum):
    """The exporter's passes that are watched, by their names in `torch._C`."""

    INLINE = "_jit_pass_inline"
    CSE = "_jit_pass_cse"
    TO_ONNX = "_jit_pass_onnx"
    CANONICALIZE = "_jit_pass_canonicalize"
    # Both start folding and fusing, the first one in evaluation mode only.
    EVAL_PEEPHOLE = "_jit_pass_onnx_eval_peephole"
    CONSTANT_FOLD = "_jit_pass_onnx_constant_fold"
    ASSIGN_NAMES = "_jit_pass_onnx_assign_scoped_names_for_node_and_value"


def pass_through(name: JitPass, around: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """For the time of the context, a pass is called through `around`, which gets the original and the graph."""
    return called_through("torch._C", str(name), around)


def translation_seen(see: Callable[[dict[Any, Any]], None]) -> contextlib.AbstractContextManager[None]:
    """Show `see` the exporter's own table of traced and translated values whenever it translates a node.

    The table is that of the graph it translates, and grows as it goes.
    """

    def translate(original: Callable[..., Any], graph: Any, block: Any, node: Any, *rest: Any) -> Any:
        if len(rest) > 1 and isinstance(rest[1], dict):
            see(rest[1])
        return original(graph, block, node, *rest)

    return called_through("torch.onnx._internal.torchscript_exporter.utils", "_run_symbolic_function", translate)


# --- graphs -----------------------------------------------------------------------------------------------------


def new_graph() -> JitGraph:
    """An empty graph."""
    return fixed_part("torch._C.Graph")()


def is_graph(block: JitBlock) -> bool:
    """Whether this is a whole graph, and not a block of a node."""
    return isinstance(block, fixed_part("torch._C.Graph"))


def is_block(found: JitObject) -> bool:
    """Whether this is a block of a node, and not a node."""
    return isinstance(found, fixed_part("torch._C.Block"))


def is_tensor(value: JitObject) -> bool:
    """Whether a value of a graph is a tensor."""
    return isinstance(value.type(), fixed_part("torch._C.TensorType"))


def as_onnx(graph: JitGraph, opset_version: int | None) -> onnx.ModelProto | None:
    """A graph of ONNX operators as a model without its weights; None where it cannot be written as it is."""
    constants = find_part("torch.onnx._constants")
    settings = find_part("torch.onnx._internal.torchscript_exporter._globals.GLOBALS")
    find_part("torch._C.Graph._export_onnx")
    try:
        # Positional: the binding has no names. Weights, opset, dynamic axes, weights apart, operators as the exporter
        # is set, without documentation, initializers as inputs, custom opsets, module types, file, functions.
        proto, *_ = graph._export_onnx(
            {},
            opset_version or constants.ONNX_DEFAULT_OPSET,
            {},
            False,
            settings.operator_export_type,
            True,
            True,
            {},
            True,
            "",
            {},
        )
    except RuntimeError:
        return None
    except TypeError as error:
        raise missing_part("torch._C.Graph._export_onnx") from error
    return onnx.load_model_from_string(proto)


@contextlib.contextmanager
def weights_apart() -> Iterator[dict[str, bytes]]:
    """Give the contents of weights by themselves, and keep them out of the files written within the context.

    The exporter can do so, but does not offer it: it copies the weights from one form of the model to the next, and
    parses all of it once more.
    """
    contents: dict[str, bytes] = {}

    def export(
        original: Callable[..., Any], graph: Any, weights: Any, opset: Any, axes: Any, defer: Any, *rest: Any
    ) -> Any:
        file, deferred, *others = original(graph, weights, opset, axes, True, *rest)
        contents.update(deferred)
        return (file, {}, *others)

    with called_through("torch._C.Graph", "_export_onnx", export):
        yield contents


@contextlib.contextmanager
def silent_log() -> Iterator[None]:
    """The exporter prints the whole graph to standard output when it fails, and leaves its log switched on: neither."""
    enabled = find_part("torch._C._jit_is_onnx_log_enabled")()
    with called_through("torch._C", "_jit_onnx_log", lambda *_: None):
        try:
            yield
        finally:
            find_part("torch._C._jit_set_onnx_log_enabled")(enabled)


# --- the trace --------------------------------------------------------------------------------------------------


def is_tracer_warning(category: type[Warning]) -> bool:
    """Whether the tracer warns that a value of the example inputs becomes a constant."""
    warning: type[Warning] = find_part("torch.jit._trace.TracerWarning")
    return issubclass(category, warning)


def tracing_state() -> Any:
    """The state of the trace that this thread records; None where it records none."""
    return fixed_part("torch._C._get_tracing_state")()


def set_tracing_state(state: Any) -> None:
    """Go on with a trace, or with None interrupt it."""
    fixed_part("torch._C._set_tracing_state")(state)


class TracingPaused:
    """Pauses the trace within the context: even reading a tensor's shape is recorded. A class, because it is fast."""

    def __init__(self, state: object) -> None:
        self._state = state

    def __enter__(self) -> None:
        set_tracing_state(None)

    def __exit__(self, *error: object) -> None:
        set_tracing_state(self._state)


def traced_value(tensors: Any, place: int) -> JitObject | None:
    """The value that holds `tensors[place]` in the graph that is traced; None where the tracer refuses to say.

    Where it does not know the tensor it enters it as a constant. It names a value after a variable of the frames that
    look it up: there must be none that is the tensor, which is why it is passed by its place.
    """
    state, look_up = tracing_state(), fixed_part("torch._C._get_value_trace")
    try:
        return look_up(tensors[place])
    except RuntimeError:
        # An unknown tensor that requires a gradient: the tracer refuses, and stops tracing.
        set_tracing_state(state)
        return None


def module_labels() -> dict[Any, str]:
    """The label of each module, from which the tracer makes the scopes of nodes: it looks them up at each call."""
    labels: dict[Any, str] = find_part("torch.jit._trace._trace_module_map") or {}
    return labels


@contextlib.contextmanager
def module_calls_through(call: Callable[..., Any], forward: Callable[..., Any]) -> Iterator[None]:
    """For the time of the context, module calls go through `call`, and their `forward` in a trace through `forward`.

    Both get the original and the module first. Needed because a call's scope must be labelled after its hooks ran, and
    hooks of our own would be recorded as part of the caller.
    """
    with (
        called_through("torch.nn.Module", "_call_impl", call),
        called_through("torch.nn.Module", "_slow_forward", forward),
    ):
        yield


# --- operators --------------------------------------------------------------------------------------------------


def decompositions_of(operator: str) -> Iterator[Callable[..., Any]]:
    """What torch itself takes the overloads of an operator apart into, for operators without a translation to ONNX."""
    table = find_part("torch._decomp.decomposition_table")
    look_up = find_part("torch._library.utils.lookup_op")
    for schema in find_part("torch._C._jit_get_schemas_for_operator")(operator):
        overload = look_up(f"{operator}.{schema.overload_name or 'default'}")
        yield table.get(overload, overload.decompose)
