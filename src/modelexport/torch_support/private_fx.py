"""Private APIs of FX tracing and of torch's dynamo exporter, each wrapped in one function. See `private`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import torch

from modelexport.torch_support.private import called_through, fixed_part


class Tracer(Protocol):
    """A tracer that records operators in an FX graph: one of several classes of torch, some of them private."""

    graph: torch.fx.Graph


_PROXY_MODE = "torch.fx.experimental.proxy_tensor.get_proxy_mode"
_PROXY_SLOT = "torch.fx.experimental.proxy_tensor.get_proxy_slot"


def require_tracing_parts() -> None:
    """Look up the APIs that hooks use while torch traces: torch reports an error in a hook as an untraceable model.

    Raises:
        UnsupportedLibraryError: The installed release does not have one of them.
    """
    for part in (_PROXY_MODE, _PROXY_SLOT):
        fixed_part(part)


def active_tracer() -> Tracer | None:
    """The tracer that records the operators that run now; None outside of a trace."""
    mode = fixed_part(_PROXY_MODE)()
    tracer: Tracer | None = mode.tracer if mode is not None else None
    return tracer


def node_of(tensor: torch.Tensor, tracer: Tracer) -> torch.fx.Node | None:
    """The FX node of a tensor in the graph of the tracer; None for an unknown tensor."""
    slot = fixed_part(_PROXY_SLOT)(tensor, tracer, None)
    proxy = getattr(slot, "proxy", slot)
    node = getattr(proxy, "node", None)
    return node if isinstance(node, torch.fx.Node) else None


def innermost_scope(tracer: Tracer | None) -> tuple[str, str | None]:
    """The innermost key and name of the tracer's module stack, as in `nn_module_stack`.

    Not every tracer has such a stack; the name is None without one.
    """
    stack = getattr(tracer, "module_stack", None)
    if not stack:
        return "", None
    key, (name, _) = next(reversed(stack.items()))
    return key, name


def before_optimization(observe: Callable[[Any], object]) -> contextlib.AbstractContextManager[None]:
    """Show the ONNX graph to `observe` when torch starts to optimize it, for the time of the context.

    Optimizing it ourselves afterwards would be simpler, but torch renames inputs, outputs and dynamic axes after it
    optimizes: only its own sequence of steps gives its own result.
    """

    def optimize(original: Callable[..., Any], program: torch.onnx.ONNXProgram, *args: Any, **kwargs: Any) -> Any:
        observe(program.model)
        return original(program, *args, **kwargs)

    return called_through("torch.onnx.ONNXProgram", "optimize", optimize)
