"""One real call of a model with made-up inputs, and what is known when it fails."""

from __future__ import annotations

import dataclasses
import linecache
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modelexport.preserve import buffers_restored, evaluation_mode, preserved_state
from modelexport.structure import named_results

_NAME = re.compile(r"[A-Za-z_]\w*")
_MOST_WORDS = 200

# The shape and type of a tensor.
Given = tuple[tuple[int, ...], torch.dtype]


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a call failed.

    Attributes:
        kind: The class of the error.
        words: What it says, in one line.
        names: Names in its words, then in the lines of code that led to it, the innermost first.
        module: The innermost module that was running.
        given: The tensors that this module was given.
        progress: How many calls of modules had ended well.
    """

    kind: type[Exception]
    words: str
    names: tuple[str, ...]
    module: torch.nn.Module | None
    given: tuple[Given, ...]
    progress: int

    def __str__(self) -> str:
        said = self.words if len(self.words) <= _MOST_WORDS else f"{self.words[: _MOST_WORDS - 2]} …"
        return f"{self.kind.__name__}: {said}"


def try_call(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Failure | None:
    """Call the model; None where it returns tensors. Nothing of the model or of torch is left changed."""
    with preserved_state(model), evaluation_mode(model), buffers_restored(model), torch.no_grad():
        running = _Running()
        for module in model.modules():
            module.register_forward_pre_hook(running.enter, with_kwargs=True)
            module.register_forward_hook(running.leave)
        try:
            result = model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever a forward raises at inputs it was not made for
            return running.failure(error)
        if any(True for _ in named_results(result)):
            return None
        return running.failure(ValueError(f"it returned a {type(result).__name__} without a tensor"))


class _Running:
    """The modules that are running, each with what it was given."""

    def __init__(self) -> None:
        self._stack: list[tuple[torch.nn.Module, tuple[Given, ...]]] = []
        self._ended = 0

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        self._stack.append((module, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)))

    def leave(self, module: torch.nn.Module, *_: object) -> None:
        self._ended += 1
        # A module whose error was caught by the model never left.
        while self._stack and self._stack.pop()[0] is not module:
            pass

    def failure(self, error: Exception) -> Failure:
        module, given = self._stack[-1] if self._stack else (None, ())
        # Only words are kept of the error: its traceback would hold every tensor of the call.
        names = tuple(dict.fromkeys(_mentioned(error)))
        return Failure(type(error), " ".join(str(error).split()), names, module, given, self._ended)


def _mentioned(error: Exception) -> Iterator[str]:
    yield from _NAME.findall(str(error))
    lines = []
    trace = error.__traceback__
    while trace is not None:
        lines.append(_statement(trace.tb_frame.f_code, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    for line in reversed(lines):
        yield from _NAME.findall(line)


def _statement(code: types.CodeType, line: int, instruction: int) -> str:
    """The source of the expression that was being evaluated."""
    positions = list(code.co_positions())
    first, last, *_ = positions[instruction // 2] if instruction // 2 < len(positions) else (line, line)
    first = first or line
    return " ".join(linecache.getline(code.co_filename, number) for number in range(first, (last or first) + 1))
