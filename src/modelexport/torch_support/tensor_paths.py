"""The tensors inside whatever a `forward` takes and returns, each with the way to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch.utils import _pytree as pytree

from modelexport.hierarchy import ForwardArgument

_MAX_DEPTH = 8
# While torch traces, numbers are symbols, which know all tensors of the trace.
_NUMBERS = (int, float, complex, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_NO_CONTAINERS = (str, bytes, *_NUMBERS, torch.nn.Module, type)


def named_arguments(
    arguments: tuple[ForwardArgument, ...], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a call, under the names of the forward arguments they were given for."""
    positional = [a for a in arguments if a.kind.startswith("positional")]
    rest = next((a.name for a in arguments if a.kind == "var_positional"), "args")
    for position, value in enumerate(args):
        if position < len(positional):
            name = positional[position].name
        else:
            name = f"{rest}.{position - len(positional)}"
        yield from tensors_in(value, name)
    for name, value in kwargs.items():
        yield from tensors_in(value, name)


def named_results(result: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a result, under its fields; a bare tensor is called ``output``."""
    if isinstance(result, torch.Tensor):
        yield "output", result
    else:
        for name, tensor in tensors_in(result, ""):
            yield name.removeprefix("."), tensor


def tensors_in(
    value: object, name: str, depth: int = 0, inside: frozenset[int] = frozenset()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor inside `value`, named by the way to it.

    Goes through tuples, lists, mappings, dataclasses, what is registered as a pytree, and the attributes of
    other objects (caches hold their tensors there). Modules are not looked into.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if depth >= _MAX_DEPTH or id(value) in inside:
        return
    for key, child in _children(value):
        yield from tensors_in(child, f"{name}.{key}", depth + 1, inside | {id(value)})


def _children(value: object) -> list[tuple[object, object]]:
    if value is None or isinstance(value, _NO_CONTAINERS):
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    # Its own attributes rather than what it is registered as: a library may register its classes at any time, and
    # names should not depend on that.
    if type(value).__module__ != "builtins" and getattr(value, "__dict__", None):
        return list(vars(value).items())
    if type(value) in pytree.SUPPORTED_NODES:
        return list(enumerate(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]))
    return []
