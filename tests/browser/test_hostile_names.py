"""Names of an untrusted file are text on the page, and nothing of them runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Opener

import modelexport
from modelexport.display import printable
from modelexport.viewing.html_page import html_page
from modelexport.viewing.page_builder import page_json

pytestmark = pytest.mark.integration

HOSTILE = [
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    "<img src=x onerror='window.ran = 3'>",
    "javascript:window.ran=4",
    "\u202egnp.exe",
    "x" * 10_000,
    "__proto__",
    "constructor",
    "\u2028\u2029\0\ud7ff",
    "\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069\x07\x1b[31m\x85\u200b",
    "\"'&<>`${window.ran = 5}",
    "%3Cscript%3E,c:,#&=",
]
# Every text of the page, what its elements show of their attributes, and its title; without the page's own line breaks.
SHOWN_TEXT = """() => {
  const texts = [document.title];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data, parentNode } = walker.currentNode;
    if (!["SCRIPT", "STYLE"].includes(parentNode.nodeName)) texts.push(data.trim());
  }
  for (const element of document.querySelectorAll("[title], [aria-label]")) {
    texts.push(element.getAttribute("title") ?? "", element.getAttribute("aria-label") ?? "");
  }
  return texts.join(" ");
}"""


@pytest.fixture(scope="module")
def hostile(exported: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page in which every text of the model is a hostile one."""
    data = json.loads(page_json(modelexport.view(exported("bert").path).data))
    data["strings"] = ["", *(f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(1, len(data["strings"])))]
    data["file"] = HOSTILE[1]
    data["notes"] = HOSTILE
    data["about"]["producer"] = HOSTILE[2]
    data["about"]["opsets"] = {"__proto__": 1, HOSTILE[0]: 2}
    for overlay in data["overlays"]:
        overlay["title"] = overlay["description"] = HOSTILE[0]
        overlay["categories"] = [HOSTILE[2]] * len(overlay.get("categories", ()))
    for graph in data["graphs"]:
        graph["name"] = HOSTILE[1]
    path = tmp_path_factory.mktemp("hostile") / "page.html"
    path.write_text(html_page(data["file"], json.dumps(data).encode()), encoding="utf-8")
    return path


def test_hostile_names_are_shown_as_text_and_nothing_runs(open_page: Opener, hostile: Path) -> None:
    opened = open_page(hostile)
    page = opened.page
    for _ in range(6):
        page.locator("g.box.closed .toggle").first.dispatch_event("click")
    for i in range(0, 30, 3):
        page.locator("g.box").nth(i % page.locator("g.box").count()).dispatch_event("click")
    opened.search("script")
    page.keyboard.press("Enter")
    assert page.locator(".option .name", has_text="<script>window.ran").count() > 0
    page.locator("#notes-badge").click()
    assert HOSTILE[0] in page.locator("#notes").inner_text()
    page.keyboard.press("Escape")
    opened.screenshot("hostile")
    for view in ("map", "table"):
        page.click(f"#tab-{view}")
    page.locator(".table-body .table-row").nth(2).click()
    assert page.evaluate("window.ran") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.title() == HOSTILE[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_control_characters_of_names_are_shown_as_replacement_characters(open_page: Opener, hostile: Path) -> None:
    opened = open_page(hostile)
    page = opened.page
    shown = ""
    for _ in range(6):
        page.locator("g.box.closed .toggle").first.dispatch_event("click")
    for i in range(12):
        box = page.locator("g.box").nth(i)
        box.dispatch_event("click")
        box.locator(".title").first.dispatch_event("pointermove")
        assert page.locator("#tooltip").is_visible()
        shown += page.evaluate(SHOWN_TEXT)
    opened.search("gnp")
    shown += page.evaluate(SHOWN_TEXT)
    opened.search("\u202egnp")
    assert page.locator(".option").count() > 0, "a search finds the exact name"
    for view in ("map", "table"):
        page.click(f"#tab-{view}")
        shown += page.evaluate(SHOWN_TEXT)
    assert "\ufffdgnp.exe" in shown
    assert printable(shown) == shown


def test_hostile_state_survives_the_permalink(open_page: Opener, hostile: Path) -> None:
    first = open_page(hostile)
    for _ in range(4):
        first.page.locator("g.box.closed .toggle").first.dispatch_event("click")
    first.page.locator("g.box").nth(2).dispatch_event("click")
    boxes = first.page.locator("g.box").count()
    again = open_page(hostile, first.fragment().removeprefix("#"))
    assert again.page.locator("g.box").count() == boxes
    assert again.page.locator("g.box.selected").count() == 1
    assert again.page.evaluate("window.ran") is None


def test_policy_of_the_page_stops_scripts_that_are_added(open_page: Opener, hostile: Path, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(hostile.as_uri())
    page.evaluate("""() => {
      const script = document.createElement('script');
      script.textContent = 'window.ran = 6';
      document.body.append(script);
    }""")
    assert page.evaluate("window.ran") is None
    context.close()
