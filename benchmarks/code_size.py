"""Count the modules and lines of each package now and at an earlier commit, and the modules that one `fx` export uses.

Run with ``make code-size``, which replaces the tables of docs/decisions/016-packages-by-stage-and-question.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.pages import replace_part, table

_ROOT = Path(__file__).parents[1]
_PACKAGE = "src/modelexport"
# The last commit before the packages of this layout.
_BEFORE = "66e313d"
_TOP = "top level"
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Exports a small CNN, and prints the modules of the package that were imported, and those of which a function ran.
_EXPORT = """
import json, sys, threading, warnings
import torch

warnings.simplefilter("ignore")
ran = set()

def note(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    if name.startswith("modelexport."):
        ran.add(name)

import modelexport
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
inputs = torch.randn(1, 3, 8, 8)
modelexport.export_model(model, inputs, sys.argv[1] + "/first.onnx", strategy="fx")
# Everything is imported now: what runs from here on is the export.
threading.setprofile(note)
sys.setprofile(note)
modelexport.export_model(model, inputs, sys.argv[1] + "/second.onnx", strategy="fx")
sys.setprofile(None)
imported = [name for name in sys.modules if name.startswith("modelexport.")]
print(json.dumps({"imported": len(imported), "ran": len(ran)}))
"""


class PackageSize(Counter[str]):
    """Modules and lines of one package."""


def package_sizes(files: Iterable[tuple[str, str]]) -> dict[str, PackageSize]:
    """The size of each package, from the path below the package and the text of each module."""
    sizes: dict[str, PackageSize] = {}
    for path, text in files:
        package = path.split("/")[0] if "/" in path else _TOP
        lines = Counter({"modules": 1, "lines": text.count("\n"), **_kinds(text)})
        sizes.setdefault(package, PackageSize()).update(lines)
    return sizes


def _kinds(text: str) -> dict[str, int]:
    """The lines that are docstrings, imports, and other code; blank lines and comments are none of them."""
    docstrings: set[int] = set()
    imports: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = text.splitlines()
    written = {n for n, line in enumerate(lines, 1) if line.strip() and not line.strip().startswith("#")}
    return {
        "docstrings": len(written & docstrings),
        "imports": len(written & imports),
        "code": len(written - docstrings - imports),
    }


def _modules_at(commit: str) -> list[tuple[str, str]]:
    packed = subprocess.run(["git", "archive", commit, _PACKAGE], cwd=_ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [member for member in archive if member.name.endswith(".py")]
        read = [(member.name, archive.extractfile(member)) for member in members]
        return [(name.removeprefix(f"{_PACKAGE}/"), file.read().decode()) for name, file in read if file is not None]


def _modules_now() -> list[tuple[str, str]]:
    folder = _ROOT / _PACKAGE
    return [(str(path.relative_to(folder)), path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def _one_export(source: Path) -> dict[str, int]:
    """How many modules one `fx` export imports, and of how many a function runs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _EXPORT, folder]
        environment = {"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _export_before(commit: str) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=_ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        return _one_export(Path(folder) / "src")


def page_part(before: dict[str, PackageSize], now: dict[str, PackageSize], exports: list[dict[str, int]]) -> str:
    """The tables of the page."""
    names = sorted({*before, *now}, key=lambda name: (name != _TOP, name))
    rows = [(_shown(name), *_cells(before.get(name)), *_cells(now.get(name))) for name in names]
    totals = [sum(sizes.values(), PackageSize()) for sizes in (before, now)]
    rows.append(("**all**", *(cell for total in totals for cell in _cells(total))))
    kinds = [(kind, *(f"{total[kind]:,}" for total in totals)) for kind in ("code", "docstrings", "imports")]
    uses = [
        ("modules imported by one `fx` export", *(export["imported"] for export in exports)),
        ("modules of which a function ran", *(export["ran"] for export in exports)),
    ]
    packages = table(("package", "modules before", "lines before", "modules after", "lines after"), rows)
    return f"{packages}\n\n{table(('lines of', 'before', 'after'), kinds)}\n\n{table(('', 'before', 'after'), uses)}"


def _shown(name: str) -> str:
    return name if name == _TOP else f"`{name}`"


def _cells(size: Counter[str] | None) -> tuple[str, str]:
    return ("", "") if size is None else (str(size["modules"]), f"{size['lines']:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=_BEFORE, help="the commit to compare with")
    parser.add_argument("--write", type=Path, help="the Markdown page whose tables are replaced")
    options = parser.parse_args()
    exports = [_export_before(options.before), _one_export(_ROOT / "src")]
    text = page_part(package_sizes(_modules_at(options.before)), package_sizes(_modules_now()), exports)
    print(text)
    if options.write is not None:
        replace_part(options.write, "code size", text)


if __name__ == "__main__":
    main()
