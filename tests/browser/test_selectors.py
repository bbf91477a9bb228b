"""The selectors of the page select what those of the package select, and fail with the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Opener
from tests.support.selector_cases import cases_of

pytestmark = pytest.mark.integration

_EVALUATE_ALL = """(cases) => cases.map(({selector}) => ({
  selector,
  calls: window.modelexport.evaluateSelector(selector, 'calls'),
  nodes: window.modelexport.evaluateSelector(selector, 'nodes'),
  owned: window.modelexport.evaluateSelector(selector, 'nodes', false),
}))"""


@pytest.mark.parametrize("name", ["bert", "shared_block", "cond"])
def test_selectors_of_the_page_equal_those_of_the_package(
    open_page: Opener, page_of: Callable[[str], Path], exported: Callable[..., Any], name: str
) -> None:
    cases = cases_of(exported(name).path)["cases"]
    assert len(cases) > 50
    found = open_page(page_of(name)).page.evaluate(_EVALUATE_ALL, cases)
    different = [(ours, theirs) for ours, theirs in zip(found, cases, strict=True) if ours != theirs]
    assert different == []
