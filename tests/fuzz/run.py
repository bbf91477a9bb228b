"""`make fuzz`: many damaged files for every reader, in chunks; each chunk is a process, whose crash is a finding.

    python -m tests.fuzz.run --count 100000 --jobs 16

The result of each chunk is kept, so that an interrupted run resumes. A case that ends its process or does not return is
a finding; the other cases of its chunk run in another process.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

_CHUNK = 500
# Far more than a chunk needs: about 25 s on an idle core.
_CHUNK_SECONDS = 1800
# Of a whole process. The much lower limit for one case is checked case by case.
_PROCESS_BYTES = 6 * 2**30


def main() -> int:
    """Run the cases; return 0 without findings, 1 with findings."""
    from tests.fuzz.seeds import export_seeds

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="number of inputs (default: 100,000)")
    parser.add_argument("--series", type=int, default=0, help="another series of inputs (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--minutes", type=float, default=None, help="start no chunk after this; run again to resume")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="for results (default: build/fuzz)")
    parser.add_argument("--again", action="store_true", help="discard the results of earlier runs")
    parser.add_argument("--case", type=int, default=None, help="run one case alone, and keep its files")
    parser.add_argument("--chunk", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.chunk is not None:
        _run_chunk(*options.chunk, options.series, options.folder, options.seeds)
        return 0
    seeds = options.folder / "seeds"
    export_seeds(seeds)
    if options.case is not None:
        found = _chunk(options.case, options.case + 1, options.series, options.folder / "case", seeds)
        print(json.dumps(found, indent=2))
        return int(bool(found["failures"]))
    return _run(options, seeds)


def _run(options: argparse.Namespace, seeds: Path) -> int:
    results: Path = options.folder / f"series-{options.series}"
    if options.again:
        shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * options.minutes if options.minutes is not None else float("inf")

    def run(start: int) -> None:
        end = min(options.count, start + _CHUNK)
        kept = results / f"{start}-{end}.json"
        if kept.is_file() or time.monotonic() > deadline:
            return
        scratch = results / f"chunk-{start}"
        kept.write_text(json.dumps(_chunk(start, end, options.series, scratch, seeds)))
        shutil.rmtree(scratch)

    with ThreadPoolExecutor(options.jobs) as pool:
        chunks = [pool.submit(run, start) for start in range(0, options.count, _CHUNK)]
        for number, done in enumerate(as_completed(chunks), 1):
            done.result()
            print(f"{number} of {len(chunks)} chunks", flush=True)
    total = _nothing()
    for kept in sorted(results.glob("*.json")):
        _add(total, json.loads(kept.read_text()))
    _summarize(total, options.count)
    return int(bool(total["failures"]))


def _nothing() -> dict:
    return {"inputs": 0, "reads": {}, "cpu": 0.0, "refused": {}, "done": {}, "failures": []}


def _chunk(start: int, end: int, series: int, folder: Path, seeds: Path) -> dict:
    """Run cases in processes: one, and another after each case that ended one."""
    folder.mkdir(parents=True, exist_ok=True)
    total = _nothing()
    while start < end:
        # If the process fails at its start, its first case is the one that failed.
        (folder / "at").write_text(str(start))
        command = [sys.executable, "-m", "tests.fuzz.run", "--chunk", str(start), str(end)]
        command += ["--series", str(series), "--folder", str(folder), "--seeds", str(seeds)]
        how = ""
        try:
            ended = subprocess.run(command, check=False, stderr=subprocess.PIPE, timeout=_CHUNK_SECONDS)
            if ended.returncode:
                how = f"the process ended with {ended.returncode}: {ended.stderr.decode(errors='replace')[-1500:]}"
        except subprocess.TimeoutExpired:
            how = f"the process timed out after {_CHUNK_SECONDS} s"
        partial = folder / "chunk.json"
        _add(total, json.loads(partial.read_text()) if partial.is_file() else {})
        at = int((folder / "at").read_text())
        if how:
            total["failures"].append([at, [], "all", how, ""])
        start = at + 1
    return total


def _run_chunk(start: int, end: int, series: int, folder: Path, seeds_folder: Path) -> None:
    """In the child process: run the cases; write the number of the current case, and the results at the end."""
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_PROCESS_BYTES, _PROCESS_BYTES))
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    from tests.fuzz.attack import attack
    from tests.fuzz.seeds import export_seeds

    (folder / "chunk.json").unlink(missing_ok=True)
    seeds = export_seeds(seeds_folder)
    # In memory if possible: each case writes small files with fsync.
    fast = Path("/dev/shm")
    workspace = Path(tempfile.mkdtemp(prefix="modelexport-fuzz-", dir=fast if fast.is_dir() else None))
    total: dict = {}
    try:
        for number in range(start, end):
            (folder / "at").write_text(str(number))
            # Python cannot interrupt a C function that never returns.
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
        else:
            total[key] = total.get(key, type(value)()) + value


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
