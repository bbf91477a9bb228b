"""Measure the commands that read a large tagged file against `onnx_ir.load` alone, for growing files.

Each measurement runs in its own process, as a command does; libraries are imported before the measurement. Times are
CPU times, which depend little on other load. Run with ``make reading-benchmark``, or
``python -m benchmarks.reading --rounds 3 --write docs/measurements/reading.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pages import replace_part, table

# The most times the time of `onnx_ir.load` of the same file that each command may take.
LIMITS = {"analyze": 1.3, "compare": 3.0, "validate": 1.3}
SIZES = (2_000, 20_000, 200_000)
BASELINE = "onnx_ir.load"


def _onnx_ir_load(path: Path) -> object:
    import onnx_ir

    return onnx_ir.load(path)


def _onnx_load(path: Path) -> object:
    import onnx

    return onnx.load(path)


def _read_model(path: Path) -> object:
    import modelexport

    return modelexport.read_model(path)


def _analyze(path: Path) -> object:
    import modelexport

    return modelexport.analyze(path, resolution=True)


def _select(path: Path) -> object:
    import modelexport

    return modelexport.select(path, "class:StackAttention and not layers.0")


def _compare(path: Path) -> object:
    import modelexport

    # With itself, read twice: all nodes are matched.
    return modelexport.compare_models(path, path)


# To measure a further command, add a line.
def _validate(path: Path) -> object:
    from modelexport.analysis.validation.graph_rules import GRAPH_RULES
    from modelexport.analysis.validation.rule import ValidatedFile
    from modelexport.analysis.validation.validator import RULES, check
    from modelexport.gc_pause import gc_paused

    # Without ONNX's own checker and shape inference, which run in a child process.
    with gc_paused():
        return check(ValidatedFile(path), [rule for rule in RULES if not rule.optional and rule not in GRAPH_RULES])


MEASURED: dict[str, Callable[[Path], object]] = {
    BASELINE: _onnx_ir_load,
    "onnx.load": _onnx_load,
    "read_model": _read_model,
    "analyze": _analyze,
    "select": _select,
    "compare": _compare,
    "validate": _validate,
}


def run_one(name: str, path: Path) -> None:
    """Measure one command in this process, and print seconds and peak memory."""
    import resource

    import onnx  # noqa: F401
    import onnx_ir  # noqa: F401

    import modelexport

    for public in ("read_model", "analyze", "select", "validate", "compare_models"):
        getattr(modelexport, public)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, wall = time.process_time(), time.perf_counter()
    kept = MEASURED[name](path)
    seconds, wall = time.process_time() - started, time.perf_counter() - wall
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"seconds": seconds, "wall": wall, "peak": peak, "kept": kept is not None}))


def measure(name: str, path: Path, rounds: int) -> dict[str, float]:
    """The medians over several processes."""
    found = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "benchmarks.reading", "--one", name, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    return {key: statistics.median(each[key] for each in found) for key in ("seconds", "wall", "peak")}


def report(rounds: int) -> tuple[str, bool]:
    """The tables of the page, and whether all limits are kept."""
    rows = []
    ratios: dict[str, float] = {}
    grown: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            path = Path(folder) / f"stack_{size}.onnx"
            # In a separate process: the peak memory of a child starts at that of its parent.
            command = [sys.executable, "-m", "benchmarks.reading", "--build", str(size), str(path)]
            subprocess.run(command, check=True)
            sidecar = path.with_name(f"{path.stem}_hierarchy.json")
            sizes = (f"{each.stat().st_size / 1e6:,.1f} MB" for each in (path, sidecar))
            labels = (f"{size:,}", *sizes)
            baseline = 0.0
            for name in MEASURED:
                found = measure(name, path, rounds)
                baseline = found["seconds"] if name == BASELINE else baseline
                ratios[name] = found["seconds"] / baseline
                grown.setdefault(name, []).append(found["seconds"] / size * 1e6)
                amounts = (f"{found['seconds']:.2f}", f"{ratios[name]:.2f}", f"{found['peak']:,.0f} MB")
                rows.append((*labels, name, *amounts))
                print(*rows[-1], sep=" | ", flush=True)
    growth_head = ("command", *(f"microseconds per node at {size:,}" for size in SIZES))
    verdicts = [
        f"- `{name}` at {SIZES[-1]:,} nodes: {ratios[name]:.2f} times `onnx_ir.load`, limit {limit}: "
        + ("kept" if ratios[name] <= limit else "EXCEEDED")
        for name, limit in LIMITS.items()
    ]
    parts = [
        f"The median of {rounds} runs:",
        table(("nodes", "file", "sidecar", "command", "seconds", "ratio", "peak memory"), rows),
        table(growth_head, [(name, *(f"{each:.1f}" for each in costs)) for name, costs in grown.items()]),
        "\n".join(verdicts),
    ]
    return "\n\n".join(parts), all(ratios[name] <= limit for name, limit in LIMITS.items())


def main() -> int:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FILE"))
    parser.add_argument("--build", nargs=2, metavar=("NODES", "FILE"))
    arguments = parser.parse_args()
    if arguments.build:
        from benchmarks.tagged_models import write_tagged_model

        write_tagged_model(Path(arguments.build[1]), int(arguments.build[0]))
        return 0
    if arguments.one:
        run_one(arguments.one[0], Path(arguments.one[1]))
        return 0
    text, good = report(arguments.rounds)
    print(text)
    if arguments.write:
        replace_part(arguments.write, "reading", text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
