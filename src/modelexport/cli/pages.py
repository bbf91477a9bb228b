"""A report as sections of text and tables, and the same as text, Markdown or one HTML file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Sequence

import msgspec

from modelexport.cli.output import printable
from modelexport.cli.tables import Cell, aligned

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
# What Markdown takes for a sign of its own.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$^-])")


class Section(msgspec.Struct, frozen=True):
    """A part of a report: a title, lines of text, and a table. `left_out` rows are not shown."""

    title: str
    lines: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    left_out: int = 0


def as_text(title: str, sections: Sequence[Section]) -> str:
    """For terminals: names made harmless."""
    lines = [printable(title)]
    for section in sections:
        lines += ["", printable(section.title), *(f"  {printable(line)}" for line in section.lines)]
        if section.rows:
            lines += [f"  {line}" for line in aligned(section.headers, section.rows)]
        lines += [f"  {words}" for words in _rest(section)]
    return "".join(f"{line}\n" for line in lines)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """For files and comments: no name becomes a link, a mark-up or HTML."""
    lines = [f"# {_marked(title)}"]
    for section in sections:
        lines += ["", f"## {_marked(section.title)}", ""]
        lines += [f"- {_marked(line)}" for line in section.lines]
        if section.rows:
            lines += [""] if section.lines else []
            rows = [section.headers, tuple("---" for _ in section.headers)]
            lines += ["| " + " | ".join(rows[0]) + " |", "|" + "|".join(rows[1]) + "|"]
            lines += ["| " + " | ".join(_marked(_shown(cell)) for cell in row) + " |" for row in section.rows]
        lines += ["", *_rest(section)] if section.left_out else []
    return "".join(f"{line}\n" for line in lines)


def as_html(title: str, sections: Sequence[Section]) -> str:
    """One file: no script, nothing loaded, and a policy that forbids both."""
    return "".join(f"{line}\n" for line in _html_lines(title, sections))


def _html_lines(title: str, sections: Sequence[Section]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_escaped(title)}</title>"
    yield f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_escaped(title)}</h1>"
    for section in sections:
        yield f"<h2>{_escaped(section.title)}</h2>"
        yield from (f"<p>{_escaped(line)}</p>" for line in section.lines)
        if section.rows:
            yield "<table>\n<thead><tr>" + "".join(f"<th>{_escaped(head)}</th>" for head in section.headers)
            yield "</tr></thead>\n<tbody>"
            for row in section.rows:
                yield "<tr>" + "".join(_html_cell(cell) for cell in row) + "</tr>"
            yield "</tbody>\n</table>"
        yield from (f"<p>{_escaped(words)}</p>" for words in _rest(section))
    yield "</body>\n</html>"


def _html_cell(cell: Cell) -> str:
    kind = ' class="number"' if isinstance(cell, int | float) else ""
    return f"<td{kind}>{_escaped(_shown(cell))}</td>"


def _rest(section: Section) -> list[str]:
    return [f"… and {section.left_out:,} more"] if section.left_out else []


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) else f"{cell}"


def _escaped(text: str) -> str:
    return html.escape(printable(text), quote=True)


def _marked(text: str) -> str:
    escaped = _MARKDOWN.sub(r"\\\1", html.escape(printable(text), quote=False))
    # Without these, addresses and names of people become links.
    return escaped.replace("://", ":&#47;&#47;").replace("www.", "www&#46;").replace("@", "&#64;")
