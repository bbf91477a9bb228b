"""Private APIs of TorchScript tracing and of torch's TorchScript exporter. See `private_part`.

The exporter has no public API to observe its graph before ONNX: its passes are functions of `torch._C`, which we wrap
during an export.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch

from modelexport.errors import UnsupportedLibraryError
from modelexport.torch_support.private import is_operator_overload
from modelexport.torch_support.private_part import Part

# A TorchScript graph, a block of a node, a node or value. Their classes are private and barely typed.
JitGraph = Any
JitBlock = Any
JitObject = Any


_ORIGINAL = "shows the graph before constant folding and fusion"
_TRACKED = "tracks the tensors of module calls through a pass that rewrites or copies the graph"
_NAMED = "reads the scope and the final name of nodes"


class JitPass(enum.Enum):
    """The exporter's passes that are observed."""

    INLINE = Part("torch._C._jit_pass_inline", _TRACKED)
    CSE = Part("torch._C._jit_pass_cse", "finds nodes of several calls that were merged")
    TO_ONNX = Part("torch._C._jit_pass_onnx", _TRACKED)
    CANONICALIZE = Part("torch._C._jit_pass_canonicalize", _TRACKED)
    # Both start folding and fusing, the first one in evaluation mode only.
    EVAL_PEEPHOLE = Part("torch._C._jit_pass_onnx_eval_peephole", _ORIGINAL)
    CONSTANT_FOLD = Part("torch._C._jit_pass_onnx_constant_fold", _ORIGINAL)
    ASSIGN_NAMES = Part("torch._C._jit_pass_onnx_assign_scoped_names_for_node_and_value", _NAMED)


_TRANSLATE = Part("torch.onnx._internal.torchscript_exporter.utils._run_symbolic_function", _TRACKED)


def pass_through(
    name: JitPass, around: Callable[..., Any], *, required: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Within the context, call a pass through `around`; its first arguments are the original and the graph.

    `required` says that the exporter must run it.
    """
    part: Part = name.value
    return part.called_through(around, first=_GRAPH.check(_GRAPH.fixed, type), required=required)


def pass_changed(name: JitPass, how: str) -> UnsupportedLibraryError:
    """The error for a pass that behaves differently in the installed release."""
    part: Part = name.value
    return part.changed(how)


def translation_seen(see: Callable[[dict[Any, Any]], None]) -> contextlib.AbstractContextManager[None]:
    """Call `see` with the exporter's mapping from traced to translated values whenever it translates a node.

    The mapping belongs to the graph that is translated, and grows with each node.
    """

    def translate(original: Callable[..., Any], graph: Any, block: Any, node: Any, *rest: Any) -> Any:
        see(_TRANSLATE.check(rest[1] if len(rest) > 1 else None, dict))
        return original(graph, block, node, *rest)

    return _TRANSLATE.called_through(translate)


# --- graphs -----------------------------------------------------------------------------------------------------

_GRAPH = Part("torch._C.Graph", "creates a graph, and tells graphs from blocks")
_EXPORT_GRAPH = Part("torch._C.Graph._export_onnx", "serializes the graph before it is folded, and weights separately")
_DEFAULT_OPSET = Part("torch.onnx._constants.ONNX_DEFAULT_OPSET", "serializes the graph before it is folded")
_SETTINGS = Part(
    "torch.onnx._internal.torchscript_exporter._globals.GLOBALS", "serializes the graph before it is folded"
)


def new_graph() -> JitGraph:
    """An empty graph."""
    return _GRAPH.having(_GRAPH.call(object), "create")


def is_graph(block: JitBlock) -> bool:
    """Whether this is a graph, not a block of a node."""
    return _GRAPH.is_instance(block)


def is_tensor(value: JitObject) -> bool:
    """Whether a value of a graph is a tensor."""
    return bool(value.type().kind() == "TensorType")


def as_onnx(graph: JitGraph, opset_version: int | None) -> onnx.ModelProto | None:
    """A graph of ONNX operators as a model without weights; None where torch cannot serialize it."""
    opset = _DEFAULT_OPSET.check(_DEFAULT_OPSET.find(), int) if opset_version is None else opset_version
    kind = getattr(_SETTINGS.find(), "operator_export_type", None)
    _SETTINGS.check(kind, torch.onnx.OperatorExportTypes)
    serialize = _EXPORT_GRAPH.of(graph)
    try:
        # The binding has positional arguments only: weights, opset, dynamic axes, separate weights, operator export
        # type, no documentation, initializers as inputs, custom opsets, module types, file, functions.
        proto, *_ = serialize({}, opset, {}, False, kind, True, True, {}, True, "", {})
    except RuntimeError:
        return None
    except (TypeError, ValueError) as error:
        raise _EXPORT_GRAPH.changed(error) from error
    return onnx.load_model_from_string(_EXPORT_GRAPH.check(proto, bytes))


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
        contents.update(_EXPORT_GRAPH.check(deferred, dict))
        return (file, {}, *others)

    with _EXPORT_GRAPH.called_through(export):
        yield contents


_IS_LOGGING = Part("torch._C._jit_is_onnx_log_enabled", "restores the exporter's log after an export that fails")
_SET_LOGGING = Part("torch._C._jit_set_onnx_log_enabled", "restores the exporter's log after an export that fails")
_LOG = Part("torch._C._jit_onnx_log", "keeps the exporter from printing the whole graph when it fails")


@contextlib.contextmanager
def silent_log() -> Iterator[None]:
    """Suppress the exporter's log: when it fails it prints the whole graph, and leaves its log enabled."""
    enabled = _IS_LOGGING.call(bool)
    _SET_LOGGING.call(object, enabled)
    with _LOG.called_through(lambda *_: None):
        try:
            yield
        finally:
            _SET_LOGGING.call(object, enabled)


# --- the trace --------------------------------------------------------------------------------------------------

_STATE = Part("torch._C._get_tracing_state", "pauses a trace while module calls are recorded")
_SET_STATE = Part("torch._C._set_tracing_state", "pauses a trace while module calls are recorded")
_VALUE = Part("torch._C._get_value_trace", "finds the value of a tensor in the traced graph")
_LABELS = Part("torch.jit._trace._trace_module_map", "adds the number of a call to the scope of its nodes")
_CALL = Part("torch.nn.Module._call_impl", "sees module calls: our own hooks would be traced as part of the caller")
_FORWARD = Part("torch.nn.Module._slow_forward", "labels the scope of a call after its hooks ran")


def is_tracer_warning(category: type[Warning]) -> bool:
    """Whether a warning says that a value of the example inputs becomes a constant in the trace."""
    return issubclass(category, torch.jit.TracerWarning)  # type: ignore[attr-defined]  # not declared


def tracing_state() -> Any:
    """The tracing state of this thread; None outside of a trace."""
    state = _STATE.call(object)
    return None if state is None else _STATE.having(state, "push_scope")


def set_tracing_state(state: Any) -> None:
    """Resume a trace, or interrupt it with None."""
    _SET_STATE.call(object, state)


class TracingPaused:
    """Pauses the trace within the context: even reading a tensor's shape is recorded. A class, because it is fast."""

    def __init__(self, state: object) -> None:
        self._state = state

    def __enter__(self) -> None:
        set_tracing_state(None)
        if tracing_state() is not None:
            raise _SET_STATE.changed("the trace goes on")

    def __exit__(self, *error: object) -> None:
        set_tracing_state(self._state)


def traced_value(tensors: Any, place: int) -> JitObject | None:
    """The value of `tensors[place]` in the traced graph; None where the tracer raises.

    The tracer adds an unknown tensor as a constant. It names a value after a local variable that refers to the tensor
    in the calling frames: there must be none, so the tensor is passed by its index.
    """
    state, look_up = tracing_state(), _VALUE.fixed
    try:
        # Not by `Part.call`, whose arguments are local variables.
        return _VALUE.having(look_up(tensors[place]), "toIValue")
    except RuntimeError:
        # An unknown tensor that requires a gradient: the tracer raises and stops tracing.
        set_tracing_state(state)
        return None
    except TypeError as error:
        raise _VALUE.changed(error) from error


def module_labels() -> dict[Any, str]:
    """The label of each module. The tracer looks it up at each call and builds the scopes of nodes from it."""
    return _LABELS.check(_LABELS.find() or {}, dict)


@contextlib.contextmanager
def module_calls_through(
    call: Callable[..., Any], forward: Callable[..., Any], *, required: bool = False
) -> Iterator[None]:
    """Within the context, run module calls through `call`, and their `forward` in a trace through `forward`.

    The first arguments of both are the original and the module. `required` says that a module must be called.
    """
    with (
        _CALL.called_through(call, first=torch.nn.Module, required=required),
        _FORWARD.called_through(forward, first=torch.nn.Module, required=required),
    ):
        yield


# --- operators --------------------------------------------------------------------------------------------------


_DECOMPOSITION = "exports operators that have no ONNX translation"
_DECOMPOSITIONS = Part("torch._decomp.decomposition_table", _DECOMPOSITION)
_LOOK_UP = Part("torch._library.utils.lookup_op", _DECOMPOSITION)
_OVERLOADS = Part("torch._C._jit_get_schemas_for_operator", _DECOMPOSITION)


def decompositions_of(operator: str) -> Iterator[Callable[..., Any]]:
    """The decompositions that torch has for the overloads of an operator, for operators without an ONNX translation."""
    table = _DECOMPOSITIONS.check(_DECOMPOSITIONS.fixed, dict)
    for schema in _OVERLOADS.call(list, operator):
        overload = _LOOK_UP.call(object, f"{operator}.{schema.overload_name or 'default'}")
        if not is_operator_overload(overload):
            raise _LOOK_UP.changed(f"it returns a {type(overload).__name__}")
        yield table.get(overload, overload.decompose)
