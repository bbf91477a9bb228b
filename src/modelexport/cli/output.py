"""Where commands print: results on stdout, everything else on stderr, names from files made harmless."""

from __future__ import annotations

import contextlib
import enum
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class OutputFormat(enum.StrEnum):
    """How a command prints its result."""

    HUMAN = "human"
    JSON = "json"


def result_console() -> Console:
    """For results people read."""
    return Console(highlight=False, soft_wrap=True)


def message_console() -> Console:
    """For progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on a terminal that something is being done, for as long as it takes."""
    console = message_console()
    with console.status(Text(printable(what))) if console.is_terminal else contextlib.nullcontext():
        yield


def print_json(content: Any) -> None:
    """For results programs read."""
    sys.stdout.write(json.dumps(content, indent=2, ensure_ascii=True) + "\n")


def printable(text: str) -> str:
    """The text without control characters: names in a file can hold escape sequences for the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
