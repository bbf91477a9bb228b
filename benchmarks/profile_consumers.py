"""Import the formats of `modelexport profile` with the importer of speedscope itself, in a browser.

    npm install speedscope
    python -m benchmarks.profile_consumers node_modules/speedscope [--chromium /usr/bin/chromium] \\
        [--write docs/measurements/profile.md]

speedscope imports its own format, Chrome's trace events and collapsed stacks. Its bundle exports nothing, so the
importer's function is made visible to the page as the bundle is loaded. Needs Playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from tests.support import zoo

import modelexport
from modelexport.profiling import ProfileReport, as_collapsed, as_speedscope, as_trace

_IMPORTER = re.compile(
    r"async function (\w+)\((\w+),(\w+)\)\{return\(await \w+\)\.importProfileGroupFromText\(\2,\3\)\}"
)
_IMPORT = """async ([name, text]) => {
    const group = await window.importProfile(name, text)
    return group && group.profiles.map(profile => {
        let frames = 0
        profile.forEachFrame(() => { frames += 1 })
        return {unit: profile.getWeightUnit(), total: profile.getTotalWeight(), frames}
    })
}"""
_HEAD = ("format", "imported as", "frames", "unit", "total", "ours")


def outputs(report: ProfileReport) -> Iterator[tuple[str, str, float]]:
    """The name and text of each format, and the total that the importer has to find."""
    yield "profile.speedscope.json", json.dumps(as_speedscope(report)), report.session.mean
    last = max((one.start + one.seconds for one in report.timeline), default=0.0)
    yield "profile.trace.json", json.dumps(as_trace(report)), (last - report.timeline[0].start) * 1e6
    yield "profile.collapsed.txt", as_collapsed(report), report.session.mean * 1e9


def imported(page: Any, name: str, text: str) -> tuple[str, dict[str, Any]]:
    """What the importer says the format is, and the only profile that it finds."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    (profile,) = page.evaluate(_IMPORT, [name, text])
    return next(line.removeprefix("Importing as ") for line in said if line.startswith("Importing as ")), profile


def measure(report: ProfileReport, speedscope: Path, chromium: str | None) -> Iterator[tuple[object, ...]]:
    release = speedscope.resolve() / "dist" / "release"
    bundle = next(release.glob("speedscope-*.js")).read_text(encoding="utf-8")
    found = _IMPORTER.search(bundle)
    if found is None:
        raise SystemExit(f"{release}: the importer is not where it is in speedscope 1.25")
    visible = bundle.replace(found[0], f"{found[0]};window.importProfile={found[1]};")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, text, total in outputs(report):
            page = browser.new_page()
            page.route("**/speedscope-*.js", lambda route: route.fulfill(body=visible, content_type="text/javascript"))
            page.goto((release / "index.html").as_uri())
            page.wait_for_function("() => !!window.importProfile")
            kind, profile = imported(page, name, text)
            if abs(profile["total"] / total - 1) > 0.01:
                raise SystemExit(f"{name}: {profile['total']} instead of {total}")
            yield name, kind, profile["frames"], profile["unit"], f"{profile['total']:.6g}", f"{total:.6g}"
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speedscope", type=Path, help="the folder of the npm package")
    parser.add_argument("--chromium", help="the browser; Playwright's own by default")
    parser.add_argument("--write", type=Path, help="the Markdown page whose table is replaced")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "bert.onnx"
        example = zoo.build("bert")
        modelexport.export_model(example.model, example.inputs, path)
        report = modelexport.profile(path, runs=5)
        rows = []
        for row in measure(report, options.speedscope, options.chromium):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
    if options.write is not None:
        replace_part(options.write, "consumers", table(_HEAD, rows))


if __name__ == "__main__":
    main()
