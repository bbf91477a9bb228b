"""Private APIs of TorchScript tracing and of torch's TorchScript exporter, each wrapped in one function. See `private`.

The exporter has no public API to observe its graph before ONNX: its passes are functions of `torch._C`, which we wrap
during an export.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any

import onnx

from modelexport.torch_support.private import called_through, find_part, fixed_part, missing_part

# A TorchScript graph, a block of a node, a node or value. Their classes are private and barely typed.
JitGraph = Any
JitBlock = Any
JitObject = Any


class JitPass(enum.StrEnum):
    """The exporter's passes that are observed, by their names in `torch._C`."""

    INLINE = "_jit_pass_inline"
    CSE = "_jit_pass_cse"
    TO_ONNX = "_jit_pass_onnx"
    CANONICALIZE = "_jit_pass_canonicalize"
    # Both start folding and fusing, the first one in evaluation mode only.
    EVAL_PEEPHOLE = "_jit_pass_onnx_eval_peephole"
    CONSTANT_FOLD = "_jit_pass_onnx_constant_fold"
    ASSIGN_NAMES = "_jit_pass_onnx_assign_scoped_names_for_node_and_value"


def pass_through(name: JitPass, around: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Within the context, call a pass through `around`; its first arguments are the original and the graph."""
    return called_through("torch._C", str(name), around)


def translation_seen(see: Callable[[dict[Any, Any]], None]) -> contextlib.AbstractContextManager[None]:
    """Call `see` with the exporter's mapping from traced to translated values whenever it translates a node.

    The mapping belongs to the graph that is translated, and grows with each node.
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
    """Whether this is a graph, not a block of a node."""
    return isinstance(block, fixed_part("torch._C.Graph"))


def is_tensor(value: JitObject) -> bool:
    """Whether a value of a graph is a tensor."""
    return isinstance(value.type(), fixed_part("torch._C.TensorType"))


def as_onnx(graph: JitGraph, opset_version: int | None) -> onnx.ModelProto | None:
    """A graph of ONNX operators as a model without weights; None where torch cannot serialize it."""
    constants = find_part("torch.onnx._constants")
    settings = find_part("torch.onnx._internal.torchscript_exporter._globals.GLOBALS")
    find_part("torch._C.Graph._export_onnx")
    try:
        # The binding has positional arguments only: weights, opset, dynamic axes, separate weights, operator export
        # type, no documentation, initializers as inputs, custom opsets, module types, file, functions.
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
    """Suppress the exporter's log: when it fails it prints the whole graph, and leaves its log enabled."""
    enabled = find_part("torch._C._jit_is_onnx_log_enabled")()
    with called_through("torch._C", "_jit_onnx_log", lambda *_: None):
        try:
            yield
        finally:
            find_part("torch._C._jit_set_onnx_log_enabled")(enabled)


# --- the trace --------------------------------------------------------------------------------------------------


def is_tracer_warning(category: type[Warning]) -> bool:
    """Whether a warning says that a value of the example inputs becomes a constant in the trace."""
    warning: type[Warning] = find_part("torch.jit._trace.TracerWarning")
    return issubclass(category, warning)


def tracing_state() -> Any:
    """The tracing state of this thread; None outside of a trace."""
    return fixed_part("torch._C._get_tracing_state")()


def set_tracing_state(state: Any) -> None:
    """Resume a trace, or interrupt it with None."""
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
    """The value of `tensors[place]` in the traced graph; None where the tracer raises.

    The tracer adds an unknown tensor as a constant. It names a value after a local variable that refers to the tensor
    in the calling frames: there must be none, so the tensor is passed by its index.
    """
    state, look_up = tracing_state(), fixed_part("torch._C._get_value_trace")
    try:
        return look_up(tensors[place])
    except RuntimeError:
        # An unknown tensor that requires a gradient: the tracer raises and stops tracing.
        set_tracing_state(state)
        return None


def module_labels() -> dict[Any, str]:
    """The label of each module. The tracer looks it up at each call and builds the scopes of nodes from it."""
    labels: dict[Any, str] = find_part("torch.jit._trace._trace_module_map") or {}
    return labels


@contextlib.contextmanager
def module_calls_through(call: Callable[..., Any], forward: Callable[..., Any]) -> Iterator[None]:
    """Within the context, run module calls through `call`, and their `forward` in a trace through `forward`.

    The first arguments of both are the original and the module. Needed because a call's scope must be labelled after
    its hooks ran, and our own hooks would be traced as part of the caller.
    """
    with (
        called_through("torch.nn.Module", "_call_impl", call),
        called_through("torch.nn.Module", "_slow_forward", forward),
    ):
        yield


# --- operators --------------------------------------------------------------------------------------------------


def decompositions_of(operator: str) -> Iterator[Callable[..., Any]]:
    """The decompositions that torch has for the overloads of an operator, for operators without an ONNX translation."""
    table = find_part("torch._decomp.decomposition_table")
    look_up = find_part("torch._library.utils.lookup_op")
    for schema in find_part("torch._C._jit_get_schemas_for_operator")(operator):
        overload = look_up(f"{operator}.{schema.overload_name or 'default'}")
        yield table.get(overload, overload.decompose)
