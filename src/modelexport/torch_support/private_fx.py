"""Private APIs of FX tracing and of torch's dynamo exporter, each wrapped in one function. See `private_part`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import onnx_ir as ir
import torch

from modelexport.torch_support.private_part import Part


class Tracer(Protocol):
    """A tracer that records operators in an FX graph: one of several classes of torch, some of them private."""

    graph: torch.fx.Graph


# --- tracing ----------------------------------------------------------------------------------------------------

_PROXY_MODE = Part("torch.fx.experimental.proxy_tensor.get_proxy_mode", "finds the tracer while a model is traced")
_TRACER = Part("torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode.tracer", "finds the graph of a trace")
_PROXY_SLOT = Part("torch.fx.experimental.proxy_tensor.get_proxy_slot", "finds the FX node of a tensor in a hook")
_MODULE_STACK = Part(
    "torch.fx.experimental.proxy_tensor._ModuleStackTracer.module_stack", "matches a call with torch's own record of it"
)

_TRACE_OPERATOR = Part("torch.fx.experimental.proxy_tensor.proxy_call", "computes values that depend on no input")
_NO_MODES = Part("torch.utils._python_dispatch._disable_current_modes", "computes values that depend on no input")
_CHECK = Part("torch._check", "fixes sizes that depend on values of the inputs")


def tracing_through(around: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Within the context, operators are traced through `around`, which is called with the original and its arguments.

    These are the mode, the operator, whether it is traced before autograd, and the operator's arguments as tuple and
    dict.
    """
    return _TRACE_OPERATOR.called_through(around, required=True)


def not_traced() -> contextlib.AbstractContextManager[object]:
    """Within the context, operators run as they do outside of a trace."""
    context: contextlib.AbstractContextManager[object] = _NO_MODES.having(_NO_MODES.call(object), "__enter__")
    return context


def constant_operator() -> Any:
    """The operator that torch traces for a constant, such as the result of `torch.tensor`."""
    return torch.ops.aten.lift_fresh_copy.default


def fix_size(size: int | torch.SymInt, number: int) -> None:
    """Tell torch, while it traces, that a size is this number."""
    _CHECK.call(type(None), size == number)


def tracer_of(mode: object) -> Tracer:
    """The tracer of a tracing mode."""
    tracer: Tracer = _TRACER.of(mode)
    _TRACER.check(getattr(tracer, "graph", None), torch.fx.Graph)
    return tracer


def active_tracer() -> Tracer | None:
    """The tracer that records the operators that run now; None outside of a trace."""
    mode = _PROXY_MODE.call(object)
    return None if mode is None else tracer_of(mode)


def node_of(tensor: torch.Tensor, tracer: Tracer) -> torch.fx.Node | None:
    """The FX node of a tensor in the graph of the tracer; None for an unknown tensor."""
    slot = _PROXY_SLOT.call(object, tensor, tracer, None)
    if slot is None:
        return None
    proxy = getattr(slot, "proxy", slot)
    node = _PROXY_SLOT.check(getattr(proxy, "node", None), torch.fx.Node)
    return node if node.graph is tracer.graph else None


def innermost_scope(tracer: Tracer | None) -> tuple[str, str | None]:
    """The innermost key and name of the tracer's module stack, as in `nn_module_stack`.

    Not every tracer has such a stack; the name is None without one.
    """
    stack = _MODULE_STACK.optional(tracer)
    if not stack:
        return "", None
    key, (name, _) = next(reversed(_MODULE_STACK.check(stack, dict).items()))
    return _MODULE_STACK.check(key, str), _MODULE_STACK.check(name, str)


# --- metadata of FX nodes ---------------------------------------------------------------------------------------

_CUSTOM = Part('torch.fx.Node.meta["custom"]', "leads from a decomposed node to the node it was decomposed from")
_STACK = Part('torch.fx.Node.meta["nn_module_stack"]', "torch's own record of the module calls around a node")
_STACK_TRACE = Part('torch.fx.Node.meta["stack_trace"]', "leads from a node to the line of generated code behind it")
_SERIAL = "modelexport.serial"
# A frame as Python's traceback prints it: file, line number and function, then the source line.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+, in [^\n]*\n\s+(?P<variable>\w+)(?:\s*:[^=\n]*)?\s*=[^=]')


def serial_of(node: torch.fx.Node) -> int | None:
    """The serial number of `node`, which may be that of the node it was decomposed from.

    torch copies `meta["custom"]` from a node to the nodes it is decomposed into, and writes none of it to ONNX.
    """
    custom = _CUSTOM.item(node.meta)
    serial = custom.get(_SERIAL) if isinstance(custom, dict) else None
    return serial if isinstance(serial, int) else None


def set_serial(node: torch.fx.Node, serial: int) -> None:
    """Give a node its serial number."""
    node.meta[_CUSTOM.key] = {**node.meta.get(_CUSTOM.key, {}), _SERIAL: serial}


@contextlib.contextmanager
def serials_removed(nodes: Iterable[torch.fx.Node]) -> Iterator[None]:
    """Remove the serial numbers that the nodes get within the context, at its end."""
    saved = [(node, node.meta.get(_CUSTOM.key)) for node in nodes]
    try:
        yield
    finally:
        for node, custom in saved:
            if custom is None:
                node.meta.pop(_CUSTOM.key, None)
            else:
                node.meta[_CUSTOM.key] = custom


def module_stack_of(node: torch.fx.Node) -> list[tuple[str, str, object]]:
    """The entries of `nn_module_stack`, outermost first: the key of a call, the module's path and its class.

    Raises:
        UnsupportedLibraryError: The entries are of another form.
    """
    stack = _STACK.check(_STACK.item(node.meta) or {}, Mapping)  # type: ignore[type-abstract]  # for isinstance
    try:
        return [(str(key), str(path), cls) for key, (path, cls) in stack.items()]
    except (TypeError, ValueError) as error:
        raise _STACK.changed(error) from error


def generated_line(node: torch.fx.Node) -> tuple[str, str] | None:
    """The file and the assigned variable of the last line in the stack trace of a node; None where it has none."""
    trace = _STACK_TRACE.item(node.meta)
    frames = list(_FRAME.finditer(trace)) if isinstance(trace, str) else []
    return (frames[-1]["file"], frames[-1]["variable"]) if frames else None


# --- the dynamo exporter ----------------------------------------------------------------------------------------

_TRANSLATE = Part(
    "torch.onnx._internal.exporter._core._translate_fx_graph",
    "shows the nodes that torch translated, to check that nothing has rewritten the graph",
)
_NEW_PROGRAM = Part(
    "torch.onnx.ONNXProgram.__init__", "shows the graph before torch rewrites it: torch creates it then"
)
_FX_NODE = Part('onnx_ir.Node.meta["node"]', "leads from an ONNX node to the FX node it was translated from")
_FX_TEXT = Part(
    'onnx_ir.Node.metadata_props["pkg.torch.onnx.fx_node"]',
    "leads from an ONNX node of an inlined function to the FX node it was translated from",
)


@contextlib.contextmanager
def translations_seen(see: Callable[[torch.onnx.ONNXProgram, bool], object]) -> Iterator[None]:
    """Within the context, show each program to `see` as soon as torch has created it.

    The second argument says whether its graph consists of the very nodes that torch has translated the FX graph to,
    so that nothing has rewritten it.
    """
    translated: dict[ir.Graph | ir.Function, list[ir.Node]] = {}

    def translate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        graphs = (value for value in (*args, *kwargs.values()) if isinstance(value, ir.Graph | ir.Function))
        translated.update({graph: list(graph) for graph in graphs})
        return result

    def create(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if args and isinstance(args[0], torch.onnx.ONNXProgram):
            # Comparing nodes compares their identity.
            is_unchanged = all(list(graph) == nodes for graph, nodes in translated.items())
            see(args[0], args[0].model.graph in translated and is_unchanged)
            translated.clear()

    with _TRANSLATE.called_through(translate), _NEW_PROGRAM.called_through(create):
        yield


def translated_node(node: ir.Node) -> torch.fx.Node | None:
    """The FX node that torch attached to an ONNX node; None for a node of an inlined function."""
    source = _FX_NODE.item(node.meta)
    return source if isinstance(source, torch.fx.Node) else None


def translated_text(node: ir.Node) -> str | None:
    """The text of the FX node that an ONNX node was translated from, copied to the nodes of an inlined function."""
    text = _FX_TEXT.item(node.metadata_props)
    return text if isinstance(text, str) else None
