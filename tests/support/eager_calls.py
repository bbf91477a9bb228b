"""What each module call of an eager run was given and returned. Shares nothing with the package."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from typing import Any

import numpy as np
import torch


def call_name(path: str, index: int) -> str:
    """How a call is written: ``path``, ``path@1``; always with its number where the path itself ends like that."""
    return f"{path}@{index}" if index or re.search(r"@\d+$", path) else path


@dataclasses.dataclass
class EagerCall:
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def _arrays(value: Any) -> dict[str, np.ndarray]:
    """The tensors of a structure by the way to them, ``states.0``."""
    if isinstance(value, torch.Tensor):
        return {"output": _array(value)}
    leaves, _ = torch.utils._pytree.tree_flatten_with_path(value)
    return {
        ".".join(re.findall(r"\w+", torch.utils._pytree.keystr(way))): _array(leaf)
        for way, leaf in leaves
        if isinstance(leaf, torch.Tensor)
    }


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().clone().float().numpy()


def _arguments(module: torch.nn.Module, given: Any, named: Any) -> dict[str, Any]:
    """Arguments by name, those that the signature collects under its own name for them included."""
    signature = inspect.signature(module.forward)
    arguments = signature.bind(*given, **named).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(parameter.name, {}))
    return dict(arguments)


def record_calls(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, EagerCall]:
    """Calls by identity (``path``, ``path@1``), outside of control-flow subgraphs."""
    calls: dict[str, EagerCall] = {}
    counts: Counter[str] = Counter()
    running: list[str] = []
    handles = []

    def enter(path: str) -> Any:
        def hook(module: torch.nn.Module, given: Any, named: Any) -> None:
            if torch.compiler.is_dynamo_compiling():
                return
            call = call_name(path, counts[path])
            counts[path] += 1
            running.append(call)
            calls[call] = EagerCall(_arrays(_arguments(module, given, named)), {})

        return hook

    def leave(module: torch.nn.Module, given: Any, result: Any) -> None:
        if not torch.compiler.is_dynamo_compiling():
            calls[running.pop()].outputs = _arrays(result)

    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(path), with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(leave))
    # What was compiled for a subgraph under other hooks or modes must not be used here, nor this elsewhere.
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        torch._dynamo.reset()
        for handle in handles:
            handle.remove()
    return calls
