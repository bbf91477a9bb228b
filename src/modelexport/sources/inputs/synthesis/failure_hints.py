"""What a failed call tells: the operands of the operation, the names in the code, and the arguments behind them."""

from __future__ import annotations

import dataclasses
import linecache
import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from modelexport.display import message_of
from modelexport.torch_support.private import tensors_among

_NAME = re.compile(r"[A-Za-z_]\w*")
_CONDITION = re.compile(r"(?:if|elif|while)\b")
_MAX_LINES_UP = 40


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor that was passed to an operation.

    Its origins are the arguments of the model that it was computed from, those that determine its size first; none for
    a weight.
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
        given = tensors_among((args, kwargs))
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            if self._failed is None or self._failed[0] is not error:
                self._failed = (error, tuple(self.operand(tensor) for tensor in given))
            raise
        known = [(tensor.numel(), names) for tensor in given if (names := self.of(tensor))]
        if known:
            # The other operands were broadcast to the size of the largest.
            known.sort(key=lambda sized: sized[0], reverse=True)
            ordered = tuple(dict.fromkeys(name for _, names in known for name in names))
            for tensor in tensors_among(result):
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
            yield from ((f"{prefix}{name}", tensor) for tensor in tensors_among(value))


@dataclasses.dataclass(frozen=True)
class Spoken:
    """The innermost line of a traceback, and its condition, that refers to tensors computed from the arguments."""

    line: str = ""
    tensors: tuple[Operand, ...] = ()


NOTHING = Spoken()


def mentioned(error: Exception) -> Iterator[str]:
    """The names in the message of the error, then those in the lines of its traceback, the innermost first."""
    yield from _NAME.findall(message_of(error))
    for frame, line in _steps(error):
        yield from _NAME.findall(_statement(frame.f_code, *line))
        yield from _NAME.findall(_condition(frame.f_code, line[0]))


def spoken_of(error: Exception, origins: Origins) -> Spoken:
    """Find the innermost line that refers to tensors computed from the arguments of the model."""
    for frame, line in _steps(error):
        text = f"{_statement(frame.f_code, *line)} {_condition(frame.f_code, line[0])}"
        values = [frame.f_locals.get(name) for name in dict.fromkeys(_NAME.findall(text))]
        found = [value for value in values if isinstance(value, torch.Tensor) and origins.of(value)]
        if found:
            return Spoken(text, tuple(map(origins.operand, found)))
    return NOTHING


def lines(error: Exception) -> list[int]:
    """The line numbers of the traceback, the outermost first."""
    return [line for _, (line, _) in reversed(_steps(error))]


def _steps(error: Exception) -> list[tuple[types.FrameType, tuple[int, int]]]:
    """The frames of an error, the innermost first, each with its line and instruction."""
    steps = []
    trace = error.__traceback__
    while trace is not None:
        steps.append((trace.tb_frame, (trace.tb_lineno, trace.tb_lasti)))
        trace = trace.tb_next
    return steps[::-1]


def _statement(code: types.CodeType, line: int, instruction: int) -> str:
    """The source of the expression that was being evaluated."""
    positions = list(code.co_positions())
    first, last, *_ = positions[instruction // 2] if instruction // 2 < len(positions) else (line, line)
    first = first or line
    return " ".join(linecache.getline(code.co_filename, number) for number in range(first, (last or first) + 1))


def _condition(code: types.CodeType, line: int) -> str:
    """The condition of the block that a `raise` statement stands in."""
    text = linecache.getline(code.co_filename, line)
    if not text.lstrip().startswith("raise"):
        return ""
    lines: list[str] = []
    indent = _indent(text)
    for number in range(line - 1, max(code.co_firstlineno, line - _MAX_LINES_UP), -1):
        above = linecache.getline(code.co_filename, number)
        if not above.strip() or (_indent(above) >= indent and not lines):
            continue
        lines.append(above)
        # A condition over several lines ends with a bracket that stands where it began.
        if not above.lstrip().startswith(")") and _indent(above) < indent and _CONDITION.match(above.lstrip()):
            return " ".join(reversed(lines))
        if len(lines) == 1 and not above.lstrip().startswith(")"):
            return ""
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
