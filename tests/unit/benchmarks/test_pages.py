"""The part of a page that a script writes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from benchmarks.pages import replace_part, table

ROOT = Path(__file__).parents[3]
# Every call of `replace_part` by its script.
PARTS = [
    pytest.param(script, name, id=f"{script.stem}-{name}")
    for script in [*sorted((ROOT / "benchmarks").glob("*.py")), ROOT / "tests/conformance/report.py"]
    for name in re.findall(r'replace_part\([\w.]+, "([\w ]+)"', script.read_text(encoding="utf-8"))
]


def test_table_has_a_line_for_each_row() -> None:
    assert table(("model", "nodes"), [("bert", 87)]) == "| model | nodes |\n|---|---|\n| bert | 87 |"


@pytest.mark.parametrize(("script", "name"), PARTS)
def test_page_has_the_part_that_its_script_writes(tmp_path: Path, script: Path, name: str) -> None:
    # The command is in the Makefile, or in the docstring of a script that needs more than the environment has.
    commands = (ROOT / "Makefile").read_text("utf-8") + script.read_text("utf-8").partition("\nfrom ")[0]
    target = re.search(rf"\.{script.stem} [^\n]*(?:\\\\\n[^\n]*)?--write ([\w./-]+)", commands)
    assert target is not None
    page = tmp_path / "page.md"
    shutil.copy(ROOT / target[1], page)
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name}: begin -->\n")
    replace_part(page, name, "new")
    assert page.read_text(encoding="utf-8") == before + begin + "new\n" + rest[rest.index(f"<!-- {name}: end -->") :]


def test_page_without_the_part_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- reading: begin -->\n", encoding="utf-8")
    with pytest.raises(ValueError, match="add both lines"):
        replace_part(page, "reading", "new")
