"""Markdown tables, and the part of a page that a script writes; the standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    return "\n".join([_row(head), "|" + "---|" * len(head), *(_row(row) for row in rows)])


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def replace_part(page: Path, name: str, text: str) -> None:
    """Replace what a page has between the comments ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    content = page.read_text(encoding="utf-8")
    before, found, rest = content.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no part between {begin} and {end}: add both lines where the text belongs")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
