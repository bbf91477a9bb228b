"""The index page of an output: one table of all jobs with links to their files, without scripts."""

from __future__ import annotations

import base64
import hashlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

from modelexport.display import cell_text, counted, escaped, shortened
from modelexport.job_results.catalogue import Catalog
from modelexport.job_results.locations import Location

FILE_NAME = "index.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { border: 1px solid #d0d7de; padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { background: #f0f3f6; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.failed { color: #b42318; } .findings { color: #8a5a00; } a { color: #0a58ca; }
@media (prefers-color-scheme: dark) {
  body { background: #14181d; color: #dde3ea; } th { background: #222932; } th, td { border-color: #39424d; }
  .failed { color: #ff8a80; } .findings { color: #ffcc66; } a { color: #8ab4f8; }
}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
_HEADERS = ("job", "status", "strategy", "check", "verify", "nodes", "MB", "seconds", "torch", "files", "message")
_MESSAGE_CHARACTERS = 300
_SHOWN_FILES = ("model.onnx", "view.html", "verify.json", "validate.json", "profile.json")


def write_index(location: Location, catalog: Catalog) -> None:
    """Write the index page.

    Raises:
        StorageError: It could not be written.
    """
    location.write(FILE_NAME, index_page(catalog).encode())


def index_page(catalog: Catalog) -> str:
    """The page, as text."""
    return "".join(f"{line}\n" for line in _lines(catalog))


def _lines(catalog: Catalog) -> Iterator[str]:
    rows = catalog.latest()
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escaped(catalog.output)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{escaped(catalog.output)}</h1>"
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), reverse=True))
    yield f"<p>{counted(len(rows), 'job')}: {escaped(words)}</p>"
    yield '<div class="wide"><table>\n<thead><tr>'
    yield "".join(f"<th>{header}</th>" for header in _HEADERS) + "</tr></thead>\n<tbody>"
    for row in rows:
        yield f"<tr>{''.join(_cells(row, catalog))}</tr>"
    yield "</tbody>\n</table></div>\n</body>\n</html>"


def _cells(row: dict[str, Any], catalog: Catalog) -> Iterator[str]:
    status = row["failure"] or row["status"]
    yield f"<td>{escaped(row['job'])}</td>"
    yield f'<td class="{escaped(row["status"])}">{escaped(status)}</td>'
    yield f"<td>{escaped(row['strategy'])}</td><td>{escaped(row['checked'])}</td>"
    verified = {None: "", 0: "did not pass", 1: "passed"}[row["verified"]]
    yield f"<td>{verified}</td>"
    size = None if row["bytes"] is None else f"{row['bytes'] / 1e6:.2f}"
    for number in (row["nodes"], size, f"{row['seconds']:.1f}"):
        yield f'<td class="number">{escaped(cell_text(number))}</td>'
    yield f"<td>{escaped(row['torch'])}</td><td>{' '.join(_links(row, catalog))}</td>"
    yield f"<td>{escaped(shortened(row['message'], _MESSAGE_CHARACTERS))}</td>"


def _links(row: dict[str, Any], catalog: Catalog) -> Iterator[str]:
    record = catalog.record(row)
    names = {file.name for file in record.files}
    for name in _SHOWN_FILES:
        if name in names:
            yield _link(f"{record.folder}/{name}", name)
    if record.log:
        yield _link(record.log, "log")
    yield _link(f"records/{record.id}.json", "record")


def _link(path: str, text: str) -> str:
    return f'<a href="{escaped(urllib.parse.quote(path))}">{escaped(text)}</a>'
