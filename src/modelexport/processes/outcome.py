"""How a process ended: what it returned, what it raised, or what ended it."""

from __future__ import annotations

import enum
import traceback
from typing import Any

import msgspec

from modelexport.child_process import OUT_OF_MEMORY
from modelexport.display import in_one_line, message_of
from modelexport.errors import causes_of

_MESSAGE_CHARACTERS = 4000
_TRACEBACK_CHARACTERS = 8000


class ProcessLimits(msgspec.Struct, frozen=True):
    """The limits of one process; None for no limit.

    Attributes:
        seconds: Wall-clock time.
        cpu_seconds: CPU time.
        memory_bytes: Memory that the process can allocate.
    """

    seconds: float | None = None
    cpu_seconds: int | None = None
    memory_bytes: int | None = None


NO_LIMITS = ProcessLimits()


class Ending(enum.StrEnum):
    """How a process ended."""

    RETURNED = "returned"
    RAISED = "raised"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    # By a signal that nobody here sent: the machine, or its user.
    KILLED = "killed"
    # By the caller.
    STOPPED = "stopped"


class RaisedError(msgspec.Struct, frozen=True):
    """An exception, as text.

    Attributes:
        class_name: Its class.
        message: What it says, in one line.
        bases: The names of its class and of the base classes.
        causes: The same names for the exceptions that it was raised from, the nearest first.
        traceback: Where it was raised.
        attributes: Facts that the function itself added.
    """

    class_name: str
    message: str
    bases: tuple[str, ...]
    causes: tuple[tuple[str, ...], ...] = ()
    traceback: str = ""
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)


class Outcome(msgspec.Struct, frozen=True):
    """What came of a function that ran in a process of its own.

    Attributes:
        ending: How the process ended.
        value: What the function returned, in JSON types.
        error: What it raised.
        detail: What ended the process, in words: a signal, an exit code, a limit.
        seconds: Wall-clock time.
        cpu_seconds: CPU time of the process and of those of its children that it waited for.
        peak_memory_bytes: The largest resident memory of the process.
    """

    ending: Ending
    value: Any = None
    error: RaisedError | None = None
    detail: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


def describe_error(error: BaseException, **attributes: Any) -> RaisedError:
    """An exception as text, with its causes."""
    chain = list(causes_of(error))
    return RaisedError(
        type(error).__name__,
        in_one_line(error)[:_MESSAGE_CHARACTERS],
        _names(error),
        tuple(_names(cause) for cause in chain[1:]),
        "".join(traceback.format_exception(error))[-_TRACEBACK_CHARACTERS:],
        attributes,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it was raised from, says that memory could not be allocated."""
    return any(
        isinstance(cause, MemoryError) or any(words in message_of(cause) for words in OUT_OF_MEMORY)
        for cause in causes_of(error)
    )


def _names(error: BaseException) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in type(error).__mro__ if kind is not object)
