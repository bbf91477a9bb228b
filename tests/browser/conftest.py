"""One browser for all tests here, and pages of exported models; every page is checked for errors and requests."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import playwright.sync_api as playwright
import pytest
from benchmarks.view_browser import CHROMIUM_OPTIONS, READY

import modelexport

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
# What a page reports when something goes wrong, for the test of that.
Problems = list[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests share a browser and exports, so they go to one worker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests that are left out have one place, so that pytest says it once for all."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def browser() -> Iterator[playwright.Browser]:
    executable = os.environ.get("MODELEXPORT_CHROMIUM") or shutil.which("chromium") or ""
    if not Path(executable).is_file():
        problem = (
            "no browser: install chromium, or name one in MODELEXPORT_CHROMIUM; the tests of the page are left out"
        )
        if os.environ.get("MODELEXPORT_BROWSER_TESTS") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable, args=list(CHROMIUM_OPTIONS))
        yield started
        started.close()


@dataclasses.dataclass(frozen=True)
class Opened:
    """An open page, with the actions that tests repeat."""

    page: playwright.Page

    def box(self, key: str) -> playwright.Locator:
        """The box of an item, by its key: ``c:`` and the id of a call, ``n:`` and the id of a node."""
        return self.page.locator(f"g.box[data-key={json.dumps(key)}]")

    def toggle(self, key: str) -> None:
        """Open or close a box, wherever it is on the screen."""
        self.box(key).locator(".toggle").dispatch_event("click")

    def search(self, query: str) -> None:
        self.page.fill("#search", query)
        playwright.expect(self.page).to_have_url(re.compile("search="))

    def details(self) -> str:
        return self.page.locator(".details").inner_text()

    def fragment(self) -> str:
        return str(self.page.evaluate("location.hash"))

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


Opener = Callable[..., Opened]


@pytest.fixture
def open_page(browser: playwright.Browser) -> Iterator[Opener]:
    """``open_page(path, "view=map", width=390)``: the page when it is ready.

    After the test no page has logged an error, thrown an exception, violated its policy or requested anything.
    """
    problems: Problems = []
    contexts: list[playwright.BrowserContext] = []

    def opened(path: Path, fragment: str = "", *, width: int = 1280, height: int = 800, dark: bool = False) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _note_request(problems, request.url))
        page.goto(f"{path.as_uri()}#{fragment}")
        page.wait_for_selector(READY, state="attached")
        return Opened(page)

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def _note_request(problems: Problems, url: str) -> None:
    if not url.startswith(("file:", "data:")):
        problems.append(f"request: {url}")


@pytest.fixture(scope="session")
def page_of(exported: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``page_of("bert")``: the page of an exported model, written when first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def write(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(modelexport.view(exported(name).path).html, encoding="utf-8")
        return path

    return write
