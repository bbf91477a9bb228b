"""Which arguments the tensors of a call are made of, and the operation that failed with what it was given."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MOST_DEEP = 3


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor that an operation was given.

    Attributes:
        shape: Its shape.
        origins: The arguments of the model it was made of, those that gave it its size first; none for a weight.
        dtype: Its type.
    """

    shape: tuple[int, ...]
    origins: tuple[str, ...]
    dtype: torch.dtype = torch.float32


class Origins(TorchFunctionMode):
    """Follows the arguments of a call through the operations of torch that run while it is entered."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._origins: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, ...]]] = {}
        self._failed: tuple[Exception, tuple[Operand, ...]] | None = None
        for name, tensor in _named(arguments):
            self._origins[id(tensor)] = (weakref.ref(tensor), (name,))

    def of(self, tensor: torch.Tensor) -> tuple[str, ...]:
        """The arguments a tensor is made of."""
        reference, names = self._origins.get(id(tensor), (None, ()))
        # Another tensor may have come to lie where one was that is gone.
        return names if reference is not None and reference() is tensor else ()

    def operand(self, tensor: torch.Tensor) -> Operand:
        """What is known of a tensor."""
        return Operand(tuple(tensor.shape), self.of(tensor), tensor.dtype)

    def operands(self, error: Exception) -> tuple[Operand, ...]:
        """What the operation was given that raised this error."""
        return self._failed[1] if self._failed is not None and self._failed[0] is error else ()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation; what it returns is made of what it was given."""
        given = list(tensors_in([*args, *(kwargs or {}).values()]))
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            if self._failed is None or self._failed[0] is not error:
                self._failed = (error, tuple(self.operand(tensor) for tensor in given))
            raise
        known = [(tensor.numel(), names) for tensor in given if (names := self.of(tensor))]
        if known:
            # The larger operand is the one that the others were spread over.
            known.sort(key=_size, reverse=True)
            ordered = tuple(dict.fromkeys(name for _, names in known for name in names))
            for tensor in tensors_in(result):
                self._origins[id(tensor)] = (weakref.ref(tensor), ordered)
        return result


def _named(parts: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of arguments: those of a list by its name, those of a mapping with a dot before their own."""
    for name, value in parts.items():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from _named(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield from ((f"{prefix}{name}", tensor) for tensor in tensors_in(value))


def _size(known: tuple[int, tuple[str, ...]]) -> int:
    return known[0]


def tensors_in(value: object, deep: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a value, or in lists and mappings of it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif deep <= _MOST_DEEP and isinstance(value, list | tuple | dict):
        parts: Iterable[object] = value.values() if isinstance(value, dict) else value
        for part in parts:
            yield from tensors_in(part, deep + 1)
