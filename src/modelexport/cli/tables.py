"""Rows and columns: aligned text for people, and CSV that a spreadsheet opens without running anything in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from modelexport.cli.output import printable

# What makes a spreadsheet take a cell for a formula, their wide forms included.
_FORMULA = frozenset("=+-@\t\r\uff1d\uff0b\uff0d\uff20")

Cell = str | int | float | None


def aligned(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    """Lines of a table: texts to the left, numbers to the right, names made harmless for terminals."""
    texts = [list(headers)]
    numeric = [True] * len(headers)
    for row in rows:
        texts.append([printable(_shown(cell)) for cell in row])
        numeric = [known and not isinstance(cell, str) for known, cell in zip(numeric, row, strict=True)]
    widths = [max(len(line[column]) for line in texts) for column in range(len(headers))]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in texts
    ]


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def as_csv(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """The table as RFC 4180 has it. A text that a spreadsheet would run as a formula gets an apostrophe in front."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(headers)
    writer.writerows([_safe(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()


def _safe(cell: str) -> str:
    return f"'{cell}" if cell.lstrip(" ")[:1] in _FORMULA and cell.strip(" ") else cell
