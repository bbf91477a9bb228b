"""Measure the pages of ``modelexport view``: the time to write them, their size, and what a browser does with them.

Models are exported once to ``--folder``. Each command runs in its own process; its processor time, that of its child
processes included, depends little on other load. Run with ``make view-benchmark``, or
``python -m benchmarks.view_page --write docs/measurements/view.md``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.pages import replace_part, table

WRITING_SECONDS = 5.0
PAGE_BYTES, BYTES_PER_NODE = 3_000_000, 200
FIRST_PAINT_MS, OPEN_LEVEL_MS = 1_000.0, 200.0
MODELS = ("bert-base", "gpt2", "resnet-50", "whisper-tiny", "mixtral", "generated")
_HEAD = ("model", "file", "nodes", "calls", "seconds", "wall", "page", "limit", "first paint", "open a level")


def write_page(model: Path, page: Path) -> dict[str, float]:
    """The processor and wall time of the command, with the time to start Python and to import libraries."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "modelexport", "view", str(model), "-o", str(page), "--no-open", "--force", "-q"]
    subprocess.run(command, check=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall": wall}


def data_of(page: Path) -> dict[str, Any]:
    """The data in a page."""
    text = page.read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text.partition('id="model-data">')[2].partition("</script>")[0])
    return content


def measure(name: str, folder: Path, rounds: int) -> tuple[tuple[str, ...], list[str]]:
    """The row of a model, and the limits that it exceeds."""
    model, page = folder / f"{name}.onnx", folder / f"{name}.html"
    if not model.exists():
        # In a process of its own, whose memory is free again before anything is measured.
        subprocess.run([sys.executable, "-m", "benchmarks.view_models", str(folder), name], check=True)
    found = min((write_page(model, page) for _ in range(rounds)), key=lambda each: each["seconds"])
    data = data_of(page)
    nodes, size = len(data["nodes"]["id"]), page.stat().st_size
    limit = PAGE_BYTES + BYTES_PER_NODE * nodes
    browser = _in_browser(page, rounds)
    exceeded = [
        f"{name}: {what} {value:,.1f}, limit {most:,.1f}"
        for what, value, most in (
            ("seconds", found["seconds"], WRITING_SECONDS),
            ("bytes", size, limit),
            ("first paint ms", browser.get("first_paint_ms", 0.0), FIRST_PAINT_MS),
            ("open a level ms", browser.get("open_level_ms", 0.0), OPEN_LEVEL_MS),
        )
        if value > most
    ]
    row = (
        name,
        f"{model.stat().st_size / 1e6:,.1f} MB",
        f"{nodes:,}",
        f"{len(data['calls']['id']):,}",
        f"{found['seconds']:.2f}",
        f"{found['wall']:.2f}",
        f"{size / 1e6:.2f} MB",
        f"{limit / 1e6:.2f} MB",
        *(f"{browser[key]:.0f} ms" if key in browser else "" for key in ("first_paint_ms", "open_level_ms")),
    )
    return row, exceeded


def _in_browser(page: Path, rounds: int) -> dict[str, float]:
    """The smallest times in a browser; none where there is none."""
    try:
        from benchmarks.view_browser import measure as measure_page
    except ImportError as error:
        print(f"not measured in a browser: {error}")
        return {}
    found = [measure_page(page.resolve()) for _ in range(rounds)]
    return {key: min(each[key] for each in found) for key in found[0]}


def main() -> int:
    """Measure, print, and write the page of measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=MODELS)
    parser.add_argument("--folder", type=Path, default=Path("build/view-models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows, exceeded = [], []
    for name in options.names:
        row, over = measure(name, options.folder, options.rounds)
        rows.append(row)
        exceeded += over
        print(*row, sep=" | ", flush=True)
    limits = (
        f"Limits: {WRITING_SECONDS:.0f} s to write, {PAGE_BYTES / 1e6:.0f} MB and {BYTES_PER_NODE} bytes a node, "
        f"{FIRST_PAINT_MS:.0f} ms to the first paint, {OPEN_LEVEL_MS:.0f} ms to open a level: "
    )
    text = "\n\n".join([table(_HEAD, rows), limits + ("; ".join(exceeded) + "." if exceeded else "all kept.")])
    print(text)
    if options.write:
        replace_part(options.write, "view", text)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
