"""Measure a page in headless chromium: the time to the first paint, and to open a level."""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path

CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Present when the page has drawn itself.
READY = "html[data-ready]"

# Opens the first closed box, and waits until the frame with its level is painted.
_OPEN_A_LEVEL = """async () => {
  const toggle = document.querySelector('g.box.closed .toggle');
  if (!toggle) return null;
  const begin = performance.now();
  toggle.dispatchEvent(new MouseEvent('click', {bubbles: true}));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""
_FIRST_PAINT = """() => new Promise((done) => {
  new PerformanceObserver((list) => done(list.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null))
    .observe({type: 'paint', buffered: true});
})"""
_LEVELS = 8


def measure(page: Path, levels: int = _LEVELS) -> dict[str, float]:
    """The time to the first paint with the graph in it, and the median time to open a level, in milliseconds."""
    from playwright.sync_api import sync_playwright

    executable = os.environ.get("MODELEXPORT_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=list(CHROMIUM_OPTIONS))
        try:
            opened = browser.new_page(viewport={"width": 1280, "height": 800})
            opened.goto(page.as_uri())
            opened.wait_for_selector(READY, state="attached")
            # The page is drawn by a script at its end, which may run after a first paint of the empty panes.
            drawn = opened.evaluate("() => performance.getEntriesByName('drawn')[0].startTime")
            paint = opened.evaluate(_FIRST_PAINT)
            times = [opened.evaluate(_OPEN_A_LEVEL) for _ in range(levels)]
        finally:
            browser.close()
    found = [time for time in times if time is not None]
    return {"first_paint_ms": max(drawn, paint), "open_level_ms": statistics.median(found) if found else 0.0}
