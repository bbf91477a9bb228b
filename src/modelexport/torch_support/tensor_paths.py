"""The tensors inside the arguments and results of a `forward`, each with its path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch

from modelexport.hierarchy import ForwardArgument
from modelexport.torch_support.private import leaves_of, registered_children

_MAX_DEPTH = 8
# While torch traces, numbers are symbols, whose attributes lead to all tensors of the trace.
_PYTHON_NUMBERS = (int, float)
_NUMBERS = (*_PYTHON_NUMBERS, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
_NOT_CONTAINERS = (str, bytes, *_NUMBERS, torch.nn.Module, type)


def named_arguments(
    arguments: tuple[ForwardArgument, ...], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in the arguments of a call, named by the arguments of `forward`."""
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
    """The tensors of a result, named by its fields; a bare tensor is named ``output``."""
    if isinstance(result, torch.Tensor):
        yield "output", result
    else:
        for name, tensor in tensors_in(result, ""):
            yield name.removeprefix("."), tensor


def flattened_results(result: object) -> list[tuple[str, torch.Tensor | float]]:
    """The tensors and numbers of a result by name, in the order in which torch flattens it: that of a graph's outputs.

    `named_results` has the same tensors in the order of their paths.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in named_results(result):
        names.setdefault(id(tensor), []).append(name)
    found: list[torch.Tensor | float] = []
    for leaf in leaves_of(result):
        found += [leaf] if isinstance(leaf, _PYTHON_NUMBERS) else [tensor for _, tensor in tensors_in(leaf, "")]
    # A class may create its tensors anew each time that it is flattened.
    return [((names.get(id(leaf)) or [f"result {position}"]).pop(0), leaf) for position, leaf in enumerate(found)]


def flattened_names(result: object) -> tuple[str, ...]:
    """The names of a result's tensors in the order in which torch flattens it.

    A name that is only a position, as in a tuple, begins with ``output.``.
    """
    names = [name for name, leaf in flattened_results(result) if isinstance(leaf, torch.Tensor)]
    return tuple(f"output.{name}" if name[:1].isdigit() else name for name in names)


def tensors_in(
    value: object, name: str, depth: int = 0, inside: frozenset[int] = frozenset()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor inside `value`, named by its path.

    Descends into tuples, lists, mappings, dataclasses, registered pytree nodes, and the attributes of other objects
    (caches store their tensors there), but not into modules.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if depth >= _MAX_DEPTH or id(value) in inside:
        return
    for key, child in _children(value):
        yield from tensors_in(child, f"{name}.{key}", depth + 1, inside | {id(value)})


def _children(value: object) -> list[tuple[object, object]]:
    if value is None or isinstance(value, _NOT_CONTAINERS):
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    # Attributes before registered children: a library may register its classes at any time, and names must not depend
    # on that.
    if type(value).__module__ != "builtins" and getattr(value, "__dict__", None):
        return list(vars(value).items())
    return list(enumerate(registered_children(value) or ()))
