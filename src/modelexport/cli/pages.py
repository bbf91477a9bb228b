"""Reports of sections with text and tables, rendered as text, Markdown, CSV or a self-contained HTML file."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from modelexport.cli.output import rendered
from modelexport.display import Cell, cell_text, escaped, html_table, printable, shortened

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 13px; }
th, td { border: 1px solid #d0d7de; padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { background: #f0f3f6; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) {
  body { background: #14181d; color: #dde3ea; } th { background: #222932; } th, td { border-color: #39424d; }
}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
# A spreadsheet reads a cell that starts with one of these as a formula; full-width forms included.
_FORMULA = frozenset("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
# Every row is padded to the widest cell: with a name of a megabyte, each row would be a megabyte.
_MAX_CELL_LENGTH = 400
_GAP = 2
# The special characters of Markdown.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$^-])")


class Section(msgspec.Struct, frozen=True):
    """A part of a report.

    Attributes:
        title: Its title; a section without a title is not indented.
        lines: Lines of text.
        headers: The columns of a table.
        rows: Its rows.
        left_out: The number of rows that are not shown.
        optional: Columns to omit, in this order, if the table is wider than the terminal.
    """

    title: str
    lines: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    left_out: int = 0
    optional: tuple[str, ...] = ()


def limited(
    title: str, headers: tuple[str, ...], rows: Iterable[Sequence[Cell]], limit: int, optional: tuple[str, ...] = ()
) -> Section:
    """A table of the first `limit` rows and the number of further rows; 0 is no limit."""
    everything = tuple(tuple(row) for row in rows)
    shown = everything[: limit or None]
    return Section(title, (), headers, shown, len(everything) - len(shown), optional)


def as_text(title: str, sections: Sequence[Section], width: int) -> str:
    """A report as plain text, with lines of at most `width` characters."""
    text = wrapped(title, 0, width) if title else ""
    dropped: dict[str, None] = {}
    for section in sections:
        indent = 2 if section.title else 0
        text += f"\n{wrapped(section.title, 0, width)}" if section.title else ""
        text += "".join(wrapped(line, indent, width) for line in section.lines)
        if section.rows:
            table, left_out = _text_table(section, width, indent)
            text += table
            dropped |= dict.fromkeys(left_out)
        text += "".join(wrapped(words, indent, width) for words in _rest(section))
    if dropped:
        words = f"columns omitted to fit the width: {', '.join(dropped)} (--format json has all)"
        text += f"\n{wrapped(words, 0, width)}"
    return text


def wrapped(text: str, indent: int, width: int) -> str:
    """A text in lines of at most `width` characters, all of them indented."""
    shown = printable(text)
    if indent + _columns(shown) <= width:
        return f"{' ' * indent if shown else ''}{shown}\n"
    from rich.padding import Padding
    from rich.text import Text

    return rendered(Padding(Text(shown, overflow="fold"), (0, 0, 0, indent), expand=False), width)


def _text_table(section: Section, width: int, indent: int) -> tuple[str, list[str]]:
    """The lines of a table, and the columns that were omitted to fit the width."""
    columns = []
    for position, header in enumerate(section.headers):
        cells = [row[position] for row in section.rows]
        numeric = not any(isinstance(cell, str) for cell in cells)
        columns.append((header, [shortened(printable(_number(cell)), _MAX_CELL_LENGTH) for cell in cells], numeric))
    widths = {header: max(map(_columns, (header, *texts))) for header, texts, _ in columns}
    # Empty columns are not shown.
    shown = {header for header, texts, _ in columns if any(texts)}
    dropped = []
    for header in section.optional:
        if header in shown and indent + sum(widths[name] + _GAP for name in shown) - _GAP > width:
            shown.remove(header)
            dropped.append(header)
    chosen = [column for column in columns if column[0] in shown]
    if indent + sum(widths[name] + _GAP for name in shown) - _GAP <= width:
        # A table that fits is aligned here: rich needs half a millisecond per row, and files have thousands of modules.
        lines = zip(*([header, *texts] for header, texts, _ in chosen), strict=True)
        sides = [(widths[header], numeric) for header, _, numeric in chosen]
        return "".join(f"{' ' * indent}{_aligned(line, sides)}\n" for line in lines), dropped
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    for header, _, numeric in chosen:
        table.add_column(header, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for line in zip(*(texts for _, texts, _ in chosen), strict=True):
        table.add_row(*map(Text, line))
    return rendered(Padding(table, (0, 0, 0, indent), expand=False), width), dropped


def _aligned(line: Sequence[str], sides: Sequence[tuple[int, bool]]) -> str:
    cells = []
    for text, (size, right) in zip(line, sides, strict=True):
        space = " " * (size - _columns(text))
        cells.append(f"{space}{text}" if right else f"{text}{space}")
    return (" " * _GAP).join(cells).rstrip()


def _columns(text: str) -> int:
    """The columns of a text in a terminal: characters of some scripts take two, others none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _number(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else cell_text(cell)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """A report as Markdown, with names escaped: no name becomes a link, markup or HTML."""
    lines = [f"# {_markdown_text(title)}"]
    for section in sections:
        lines += ["", f"## {_markdown_text(section.title)}", ""]
        lines += [f"- {_markdown_text(line)}" for line in section.lines]
        if section.rows:
            lines += [""] if section.lines else []
            rows = [section.headers, tuple("---" for _ in section.headers)]
            lines += ["| " + " | ".join(rows[0]) + " |", "|" + "|".join(rows[1]) + "|"]
            lines += ["| " + " | ".join(_markdown_text(cell_text(cell)) for cell in row) + " |" for row in section.rows]
        lines += ["", *_rest(section)] if section.left_out else []
    return "".join(f"{line}\n" for line in lines)


def as_html(title: str, sections: Sequence[Section]) -> str:
    """A report as one HTML file without scripts and external resources, and a policy that forbids both."""
    return "".join(f"{line}\n" for line in _html_lines(title, sections))


def _html_lines(title: str, sections: Sequence[Section]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escaped(title)}</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escaped(title)}</h1>"
    for section in sections:
        yield f"<h2>{escaped(section.title)}</h2>"
        yield from (f"<p>{escaped(line)}</p>" for line in section.lines)
        if section.rows:
            yield html_table(section.headers, section.rows)
        yield from (f"<p>{escaped(words)}</p>" for words in _rest(section))
    yield "</body>\n</html>"


def as_csv(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table as CSV (RFC 4180); text that a spreadsheet would run as a formula gets an apostrophe as prefix."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(headers)
    writer.writerows([_csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()


def _csv_cell(cell: str) -> str:
    text = printable(cell)
    return f"'{text}" if cell.lstrip(" ")[:1] in _FORMULA and cell.strip(" ") else text


def _rest(section: Section) -> list[str]:
    return [f"… and {section.left_out:,} more"] if section.left_out else []


def _markdown_text(text: str) -> str:
    marked = _MARKDOWN.sub(r"\\\1", html.escape(printable(text), quote=False))
    # Otherwise URLs and @names become links.
    return marked.replace("://", ":&#47;&#47;").replace("www.", "www&#46;").replace("@", "&#64;")
