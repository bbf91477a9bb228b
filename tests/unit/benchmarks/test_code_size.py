"""The table of packages counts modules and lines, by the first folder."""

from __future__ import annotations

from benchmarks.code_size import package_sizes, page_part

_MODULE = '"""One line."""\n\nimport os\n\n# why\nx = os.name\n'


def test_lines_are_counted_by_package_and_kind() -> None:
    sizes = package_sizes([("errors.py", _MODULE), ("graph/__init__.py", ""), ("graph/deep/one.py", _MODULE)])
    assert sizes["top level"] == {"modules": 1, "lines": 6, "docstrings": 1, "imports": 1, "code": 1}
    assert (sizes["graph"]["modules"], sizes["graph"]["lines"]) == (2, 6)


def test_package_that_is_new_or_gone_has_an_empty_cell() -> None:
    before, now = package_sizes([("old/a.py", _MODULE)]), package_sizes([("new/a.py", _MODULE)])
    rows = page_part(before, now, [{"imported": 1, "ran": 1}, {"imported": 3, "ran": 2}]).splitlines()
    assert "| `new` |  |  | 1 | 6 |" in rows
    assert "| `old` | 1 | 6 |  |  |" in rows
    assert "| **all** | 1 | 6 | 1 | 6 |" in rows
    assert "| modules of which a function ran | 1 | 2 |" in rows
