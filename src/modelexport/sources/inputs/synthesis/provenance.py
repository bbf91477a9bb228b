"""The arguments of a call that each tensor was computed from, and the operands of the operation that failed."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MAX_DEPTH = 3


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor that was passed to an operation.

    Attributes:
        shape: Its shape.
        origins: The arguments of the model that it was computed from, those that determine its size first; none for a
            weight.
        dtype: Its type.
    """

    shape: tuple[int, ...]
    origins: tuple[str, ...]
    dtype: torch.dtype = torch.float32


class Origins(TorchFunctionMode):
    """Tracks the arguments of a call through the torch operations that run while it is active."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._origins: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, ...]]] = {}
        self._failed: tuple[Exception, tuple[Operand, ...]] | None = None
        for name, tensor in _named(arguments):
            self._origins[id(tensor)] = (weakref.ref(tensor), (name,))

    def of(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """The arguments that a tensor was computed from."""
        reference, names = self._origins.get(id(tensor), (None, ()))
        # Another tensor may have been allocated where a freed one was.
        return names if reference is not None and reference() is tensor else ()

    def operand(self, tensor: torch.Tensor) -> Operand:
        """The tensor as an operand."""
        return Operand(tuple(tensor.shape), self.of(tensor), tensor.dtype)

    def operands(self, error: Exception) -> tuple[Operand, ...]:
        """The operands of the operation that raised this error."""
        return self._failed[1] if self._failed is not None and self._failed[0] is error else ()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation; its results have the origins of its operands."""
        given = list(tensors_in([*args, *(kwargs or {}).values()]))
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            if self._failed is None or self._failed[0] is not error:
                self._failed = (error, tuple(self.operand(tensor) for tensor in given))
            raise
        known = [(tensor.numel(), names) for tensor in given if (names := self.of(tensor))]
        if known:
            # The other operands were broadcast to the size of the largest.
            known.sort(key=_size, reverse=True)
            ordered = tuple(dict.fromkeys(name for _, names in known for name in names))
            for tensor in tensors_in(result):
                self._origins[id(tensor)] = (weakref.ref(tensor), ordered)
        return result


def _named(parts: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the arguments: those of a list by its name, those of a mapping as `argument.key`."""
    for name, value in parts.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from _named(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield from ((f"{prefix}{name}", tensor) for tensor in tensors_in(value))


def _size(known: tuple[int, tuple[str, ...]]) -> int:
    return known[0]


def tensors_in(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a value, nested lists and mappings included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= _MAX_DEPTH and isinstance(value, list | tuple | dict):
        parts: Iterable[object] = value.values() if isinstance(value, dict) else value
        for part in parts:
            yield from tensors_in(part, depth + 1)
