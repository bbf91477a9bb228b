"""What the traceback of an error tells: the names in its lines of code, and the tensors they refer to."""

from __future__ import annotations

import dataclasses
import linecache
import re
import types
from collections.abc import Iterator

import torch

from modelexport.sources.inputs.synthesis.provenance import Operand, Origins

_NAME = re.compile(r"[A-Za-z_]\w*")
_CONDITION = re.compile(r"(?:if|elif|while)\b")
_MAX_LINES_UP = 40


@dataclasses.dataclass(frozen=True)
class Spoken:
    """The innermost line of the traceback that refers to tensors computed from the arguments of the model.

    Attributes:
        line: The line, and the condition it stands under.
        tensors: The tensors it refers to.
    """

    line: str = ""
    tensors: tuple[Operand, ...] = ()


NOTHING = Spoken()


def mentioned(error: Exception) -> Iterator[str]:
    """The names in the message of the error, then those in the lines of its traceback, the innermost first."""
    yield from _NAME.findall(str(error))
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
