"""The results of sweeps, a line of JSON for each model: what they were measured with, and which of them still hold."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import hashlib
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grimp

Record = dict[str, Any]

# The exports that our code has no part in.
PLAIN_WAYS = ("plain", "plain_no_cache", "with_caches", "transformers", "torchscript")
# What a sweep measures: every exporter, ours alone, or the proof of our files on other values or at other sizes.
MEASURES = ("all", "ours", "probes", "sizes")
PROOFS = MEASURES[2:]
_ROOT = Path(__file__).parents[1]
_PACKAGES = ("torch", "transformers", "diffusers", "timm", "onnx", "onnx-ir", "onnxscript", "onnxruntime")
_SWEEP_SCRIPTS = (
    "output_difference.py",
    *(
        f"sweep_{name}.py"
        for name in ("candidates", "checks", "job", "judge", "probes", "process", "shrinking", "sizes", "steps")
    ),
)
# What the sweep calls of the package: to synthesize inputs, to export, and to check files.
_SWEPT_PACKAGES = (
    "exporting",
    "sources.inputs.synthesis",
    "verification",
    "analysis.contamination",
    "analysis.extraction",
    "processes",
)


def key_of(record: Mapping[str, Any]) -> str:
    """What tells a record from those of other models, and from another proof of the same model."""
    proof = record.get("measured")
    return f"{record['name']} {proof}" if proof in PROOFS else str(record["name"])


def current_setup(commit: str | None = None, scripts: Iterable[str] = _SWEEP_SCRIPTS) -> Record:
    """The versions of the libraries, the commit, a digest of the code that is swept, and the day.

    Args:
        commit: The commit, on a machine without the repository.
        scripts: The files of this folder that the results depend on.
    """
    code = _code(scripts)
    return {"versions": _versions(), "commit": commit or _commit(), "code": code, "date": f"{dt.date.today()}"}


def read_records(path: Path) -> Iterator[Record]:
    """The results so far, of a file that may be compressed; the last line may be incomplete."""
    if not path.exists():
        return
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def keep_records(records: Iterable[Record], path: Path) -> None:
    """Write results for later sweeps: compressed, sorted by name, without tracebacks, the same bytes every time."""
    lines = (json.dumps(_without_traces(record)) for record in sorted(records, key=key_of))
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def _without_traces(record: Record) -> Record:
    return {
        key: {name: part for name, part in value.items() if name != "trace"} if isinstance(value, dict) else value
        for key, value in record.items()
    }


def still_valid(records: Iterable[Record], setup: Record, *, mixed: bool) -> dict[str, Record]:
    """The last result of each model by `key_of`, of those measured with the same libraries and code.

    Args:
        records: All results.
        setup: What there is now.
        mixed: Results of other code count too.
    """
    compared = ("versions",) if mixed else ("versions", "code")
    return {
        key_of(record): record
        for record in records
        if all(record.get("setup", {}).get(key) == setup[key] for key in compared)
    }


def known_exports(records: Iterable[Record], setup: Record) -> dict[str, dict[str, Record]]:
    """The exports without our code, by model and configuration, that were made with the same libraries.

    An export that reached its time limit is known only up to that limit: each has the ``limit`` that it ran under.
    """
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        if record.get("setup", {}).get("versions") != setup["versions"] or "configuration" not in record:
            continue
        known = found.setdefault(record["name"], {}).setdefault(record["configuration"], {})
        for way in PLAIN_WAYS:
            if way in record:
                # An outcome that was itself known has its own day and limit.
                known[way] = {"limit": record["limit"], "measured": record["setup"]["date"], **record[way]}
    return found


def longest_first(names: Iterable[Any], records: Iterable[Record]) -> list[Any]:
    """The models in the order to start them: by the CPU time that they took last, those never measured first."""
    seconds = {record["name"]: record["cpu"] for record in records if "cpu" in record}
    return sorted(names, key=lambda name: -seconds.get(str(name), float("inf")))


def _versions() -> Mapping[str, str]:
    # timm is installed apart.
    found = list(importlib.metadata.distributions(path=[*sys.path, str(Path(sys.prefix) / "apart")]))
    installed = {distribution.metadata["Name"]: distribution.version for distribution in reversed(found)}
    packages = {name: installed[name] for name in _PACKAGES if name in installed}
    return {"python": platform.python_version(), **packages}


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError):
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        return ended.stdout.strip() or "unknown"
    return "unknown"


def _code(scripts: Iterable[str]) -> str:
    """A digest of the scripts, and of the modules that it runs: a change of any other module changes no result."""
    graph = grimp.build_graph("modelexport", cache_dir=None)
    packages = {f"modelexport.{name}" for name in _SWEPT_PACKAGES}
    called = packages.union(*map(graph.find_descendants, packages))
    swept = called.union(*map(graph.find_upstream_modules, called))
    files = [_ROOT / "benchmarks" / name for name in scripts]
    digest = hashlib.sha256()
    for path in (*map(_source, sorted(swept)), *files):
        digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _source(module: str) -> Path:
    place = _ROOT.joinpath("src", *module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
