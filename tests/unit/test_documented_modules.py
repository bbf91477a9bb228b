"""The modules that the pages for contributors name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import modelexport

ROOT = Path(__file__).parents[2]
PACKAGE = Path(modelexport.__file__).parent
PAGES = ("CONTRIBUTING.md", "docs/architecture.md")


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_*]+)+\.py)`", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 4
    folders = (PACKAGE, ROOT)
    assert [name for name in named if not any(list(folder.glob(name)) for folder in folders)] == []
