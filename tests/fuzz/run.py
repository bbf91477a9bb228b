"""`make fuzz`: many cases, in chunks, each in a process of its own that may die; goes on where the last run stopped.

    python -m tests.fuzz.run --count 100000

What is done is written down after each chunk, so that an interrupted run goes on. A chunk that dies, or does not end,
is a finding, with the number it was at; the rest of it is run again without that one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

_CHUNK = 500
# Twice what all readers may take on one case, and then nobody believes it ends.
_CHUNK_SECONDS = 1800
# Of a whole process, torch not among it: far over the limit for a case, which is kept case by case.
_PROCESS_BYTES = 6 * 2**30


def main() -> int:
    """Run; 0 where nothing was found, 1 where something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs (default: 100,000)")
    parser.add_argument("--series", type=int, default=0, help="another series of inputs (default: 0)")
    parser.add_argument("--minutes", type=float, default=None, help="stop after this long; run again to go on")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="what is kept (default: build/fuzz)")
    parser.add_argument("--again", action="store_true", help="begin at 0 again")
    parser.add_argument("--case", type=int, default=None, help="lay out one case in the folder, and run it alone")
    parser.add_argument("--chunk", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk is not None:
        _run_chunk(*options.chunk, options.series, options.folder)
        return 0
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"series-{options.series}.json"
    if options.case is not None:
        found = _chunk(options.case, options.case + 1, options.series, folder)
        print(json.dumps(found, indent=2))
        return int(bool(found["failures"]))
    state = _read(record) if not options.again else None
    state = state or {"next": 0, "inputs": 0, "reads": {}, "cpu": 0.0, "refused": {}, "done": {}, "failures": []}
    began = time.monotonic()
    while state["next"] < options.count:
        if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
            break
        end = min(options.count, state["next"] + _CHUNK)
        _add(state, _chunk(state["next"], end, options.series, folder))
        state["next"] = end
        record.write_text(json.dumps(state))
        print(f"{end:,} of {options.count:,} inputs, {len(state['failures'])} findings", flush=True)
    _summarize(state, options.count)
    return int(bool(state["failures"]))


def _chunk(start: int, end: int, series: int, folder: Path) -> dict:
    """Run cases in processes: one, and another behind each case that ended one."""
    total: dict = {"inputs": 0, "reads": {}, "cpu": 0.0, "refused": {}, "done": {}, "failures": []}
    while start < end:
        # Where the process cannot even begin, the case it was to begin with is the one it ended at.
        (folder / "at").write_text(str(start))
        command = [sys.executable, "-m", "tests.fuzz.run", "--chunk", str(start), str(end)]
        command += ["--series", str(series), "--folder", str(folder)]
        how = ""
        try:
            ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, timeout=_CHUNK_SECONDS)
            if ended.returncode:
                how = f"the process ended with {ended.returncode}: {ended.stderr.decode(errors='replace')[-1500:]}"
        except subprocess.TimeoutExpired:
            how = f"the process did not end in {_CHUNK_SECONDS} s"
        _add(total, _read(folder / "chunk.json") or {})
        at = int((folder / "at").read_text())
        if how:
            total["failures"].append([at, [], "all", how, ""])
        start = at + 1
    return total


def _run_chunk(start: int, end: int, series: int, folder: Path) -> None:
    """In the process: run the cases, and write down after each how far it came."""
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_PROCESS_BYTES, _PROCESS_BYTES))
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    from tests.fuzz.attack import attack
    from tests.fuzz.seeds import export_seeds

    (folder / "chunk.json").unlink(missing_ok=True)
    (folder / "at").write_text(str(start))
    seeds = export_seeds(folder / "seeds")
    # Memory, where there is such a place: each case writes a few small files and forces them onto the disk.
    fast = Path("/dev/shm")
    workspace = Path(tempfile.mkdtemp(prefix="modelexport-fuzz-", dir=fast if fast.is_dir() else None))
    total: dict = {}
    try:
        for number in range(start, end):
            (folder / "at").write_text(str(number))
            # A C function that never returns is deaf to signals.
            faulthandler.dump_traceback_later(300, exit=True)
            cpu = time.process_time()
            tally = attack([number], seeds, workspace, series)
            _add(total, _plain(tally, time.process_time() - cpu))
        faulthandler.cancel_dump_traceback_later()
    finally:
        (folder / "chunk.json").write_text(json.dumps(total))
        shutil.rmtree(workspace, ignore_errors=True)


def _plain(tally: object, cpu: float) -> dict:
    found = {field.name: getattr(tally, field.name) for field in dataclasses.fields(tally)}  # type: ignore[arg-type]
    failures = [[number, list(done), *dataclasses.astuple(failure)] for number, done, failure in found["failures"]]
    return {**found, "failures": failures, "cpu": cpu}


def _add(total: dict, more: dict) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            total[key] = dict(Counter(total.get(key, {})) + Counter(value))
        elif key != "next":
            total[key] = total.get(key, type(value)()) + value


def _read(path: Path) -> dict | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _summarize(state: dict, count: int) -> None:
    print()
    reads = sum(state["reads"].values())
    print(f"{state['inputs']:,} of {count:,} inputs, {reads:,} reads, {state['cpu']:,.0f} s of CPU time")
    refused = [f"{name} {state['refused'].get(name, 0):,} of {n:,}" for name, n in sorted(state["reads"].items())]
    print("refused:", ", ".join(refused))
    print("mutations:", ", ".join(f"{name} {n:,}" for name, n in sorted(state["done"].items())))
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for number, _, reader, problem, detail in state["failures"]:
        grouped.setdefault((reader, problem, detail), []).append(number)
    for (reader, problem, detail), numbers in grouped.items():
        print(f"FOUND {reader}: {problem} [{detail}] in {len(numbers)} inputs, first {numbers[0]}")
    print("nothing found" if not grouped else f"{len(grouped)} findings; --case NUMBER runs one alone")


if __name__ == "__main__":
    sys.exit(main())
