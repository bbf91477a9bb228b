"""Display of results: names from untrusted files with unsafe characters replaced, short reprs, HTML for notebooks."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Cell = str | int | float | None
Shown = TypeVar("Shown", bound=type)

# Escape sequences of terminals, characters that reorder or break the text around them, and invisible ones.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_LONGEST_VALUE = 80
_MOST_ROWS = 20


@dataclasses.dataclass(frozen=True)
class Summary:
    """The content of a result's repr and of its HTML view in a notebook.

    Attributes:
        facts: The values that a repr shows as well, by name.
        headers: The columns of a table below them; empty for none.
        rows: All its rows; only the first ones are shown.
    """

    facts: Mapping[str, Any]
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()


def printable(text: str) -> str:
    """The text with every character replaced that could control a terminal or disguise the text."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def shortened(text: str, most: int) -> str:
    """The text, or its first characters and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"


def message_of(error: BaseException) -> str:
    """The message of an error, which may be of any library: its ``__str__`` may fail."""
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001  an error of any library
        return f"(its message cannot be shown: {type(problem).__name__})"


def in_one_line(error: BaseException) -> str:
    """The message of an error without line breaks; its class if there is no message."""
    return " ".join(message_of(error).split()) or type(error).__name__


def with_class(error: BaseException) -> str:
    """The class and the message of an error, without line breaks."""
    return " ".join(f"{type(error).__name__}: {message_of(error)}".split())


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 node``, ``2 nodes``, ``0 nodes``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def cell_text(cell: Cell) -> str:
    """The text of a table cell."""
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def escaped(text: str) -> str:
    """The text for HTML, without unsafe characters and with markup escaped."""
    return html.escape(printable(text), quote=True)


def html_table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table in HTML."""
    head = "".join(f"<th>{escaped(header)}</th>" for header in headers)
    body = "\n".join("<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _html_cell(cell: Cell) -> str:
    kind = ' class="number"' if isinstance(cell, int | float) else ""
    return f"<td{kind}>{escaped(cell_text(cell))}</td>"


def summarized(describe: Callable[[Any], Summary]) -> Callable[[Shown], Shown]:
    """Give a class a repr of one line, and an HTML view for notebooks if it has none of its own.

    A generated repr repeats every nested record: 100,000 characters for a small model.

    Args:
        describe: Returns the summary of an instance.
    """

    def decorate(cls: Shown) -> Shown:
        def represent(self: Any) -> str:
            facts = ", ".join(f"{name}={_short(value)}" for name, value in describe(self).facts.items())
            return f"{cls.__name__}({facts})"

        def represent_html(self: Any) -> str:
            return _html(cls.__name__, describe(self))

        # Set here rather than inherited: the generated repr of a dataclass or struct would win.
        setattr(cls, "__repr__", represent)  # noqa: B010  mypy refuses the assignment
        if "_repr_html_" not in vars(cls):
            setattr(cls, "_repr_html_", represent_html)  # noqa: B010  as above
        return cls

    return decorate


def _short(value: Any) -> str:
    text = printable(repr(str(value)) if not isinstance(value, bool | int | float | None) else repr(value))
    return shortened(text, _LONGEST_VALUE)


def _html(title: str, summary: Summary) -> str:
    facts = [
        (name.replace("_", " "), value if isinstance(value, int) else str(value))
        for name, value in summary.facts.items()
    ]
    parts = [f"<p><b>{escaped(title)}</b></p>", html_table(("", ""), facts)]
    if summary.rows:
        parts.append(html_table(summary.headers, summary.rows[:_MOST_ROWS]))
        hidden = len(summary.rows) - _MOST_ROWS
        parts += [f"<p>… and {hidden:,} more</p>"] if hidden > 0 else []
    return f"<div>{''.join(parts)}</div>"
