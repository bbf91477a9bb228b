"""What `modelexport batch` promises, measured: many models, killed coordinators, two at once, and bad input.

    python -m benchmarks.batch_proof [--models 100] [--kills 10] [--baseline 100] [--write docs/measurements/batch.md]

S3 and Ray have tests of their own: `make cluster`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.batch_models import EXPECTED, jobs

import modelexport
from modelexport.job_results import EntryStore, Location, Record, read_record, record_names

_FILE = str(Path(__file__).with_name("batch_models.py"))
_ROOT = Path(__file__).parents[1]
# One job in a fresh process that does nothing else: what a loop in a shell does, with the limits of a batch.
_ALONE = """
import json, sys, tempfile
from modelexport.child_process import limit_memory
from modelexport.batching.export_job import export_job
job = json.loads(sys.argv[1])
limit_memory(int(job.pop("memory", 8) * 2**30))
export_job({"job": job, "folder": tempfile.mkdtemp(dir=sys.argv[2])})
"""
_SEED = 0


def main() -> int:
    """Measure, and write the page."""
    options = _options()
    # One thread for each of two jobs, here and in the processes that run alone.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="modelexport-proof-") as folder:
        place = Path(folder)
        lines = ["# Batches", "", _how(options), ""]
        lines += _many(place / "many", options)
        lines += _killed(place / "killed", options)
        lines += _together(place / "together", options)
        lines += _bad_input(place / "bad")
    text = "\n".join(lines) + "\n"
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
    print(text)
    return 1 if "**no**" in text else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--baseline", type=int, default=100, help="how many of them run one after the other as well")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--small", type=int, default=6, help="models of the batches that are killed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path, default=None)
    return parser.parse_args()


def _how(options: argparse.Namespace) -> str:
    given = " ".join(sys.argv[1:]).partition("--write")[0].strip()
    command = f"`make batch-proof BATCH_ARGS='{given}'`" if given else "`make batch-proof`"
    load = os.getloadavg()[0]
    return f"{command}: {os.cpu_count()} CPUs with a load of {load:.0f}, {options.workers} jobs at a time."


def _cpu() -> float:
    """The CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _holds(condition: bool) -> str:
    return "yes" if condition else "**no**"


def _many(folder: Path, options: argparse.Namespace) -> list[str]:
    chosen = jobs(options.models, _FILE)
    first = modelexport.batch(chosen, folder / "out", workers=options.workers, progress=_show)
    found = {job.job: job.failure or job.status for job in first.jobs}
    wrong = {name: how for name, how in found.items() if how != EXPECTED.get(name, "succeeded")}
    began = time.monotonic()
    second = modelexport.batch(chosen, folder / "out", workers=options.workers)
    again = time.monotonic() - began
    idle = all(job.action in ("up_to_date", "failed_before") for job in second.jobs)
    lines = [
        f"## {len(chosen)} models",
        "",
        "Of transformers, timm and torch's own layers, with models that fail, crash, never end or eat memory.",
        "",
        "| | | holds |",
        "|---|---|---|",
        f"| accounted for, with the class of failure | {len(found)}: {_counts(found)} | {_holds(not wrong)} |",
        f"| a second run does nothing | {again:.1f} s | {_holds(idle and again < 5)} |",
    ]
    lines += [f"| {name} | {how}, expected {EXPECTED.get(name, 'succeeded')} | **no** |" for name, how in wrong.items()]
    if options.baseline:
        part = chosen[: options.baseline]
        spent = [_cpu()]
        began = time.monotonic()
        modelexport.batch(part, folder / "part", workers=options.workers)
        seconds = time.monotonic() - began
        spent.append(_cpu())
        alone = _one_after_the_other(part, folder)
        spent.append(_cpu())
        ratio = seconds / alone
        words = (
            f"{len(part)} models: {seconds:.0f} s ({spent[1] - spent[0]:.0f} s of CPU time), one after the other "
            f"{alone:.0f} s ({spent[2] - spent[1]:.0f} s of CPU time): {ratio:.2f}"
        )
        lines.append(f"| at most 0.65 of the time of fresh processes | {words} | {_holds(ratio <= 0.65)} |")
    return [*lines, ""]


def _one_after_the_other(chosen: Sequence[dict[str, Any]], folder: Path) -> float:
    began = time.monotonic()
    for job in chosen:
        command = [sys.executable, "-c", _ALONE, json.dumps(job), str(folder)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=_ROOT, capture_output=True, check=False, timeout=job.get("timeout", 1800))
    return time.monotonic() - began


def _show(event: modelexport.BatchProgress) -> None:
    print(f"{event.done}/{event.total} {event.job} {event.failure or event.status} {event.message[:80]}", flush=True)


def _counts(found: dict[str, str]) -> str:
    values = list(found.values())
    return ", ".join(f"{values.count(how)} {how}" for how in sorted(set(values), key=lambda how: -values.count(how)))


def _start(chosen: Sequence[dict[str, Any]], output: Path, cache: Path | None = None) -> subprocess.Popen[bytes]:
    file = output.with_suffix(".jsonl")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, chosen)), encoding="utf-8")
    command = [sys.executable, "-m", "modelexport", "batch", str(file), "-o", str(output), "-j", "2", "-q"]
    extra = [] if cache is None else ["--cache", str(cache)]
    return subprocess.Popen([*command, *extra], cwd=_ROOT)


def _small_jobs(count: int) -> list[dict[str, Any]]:
    return [{"model": f"{_FILE}:own({number}, 0)", "name": f"own{number}"} for number in range(count)]


def _killed(folder: Path, options: argparse.Namespace) -> list[str]:
    chosen = _small_jobs(options.small)
    began = time.monotonic()
    _start(chosen, folder / "reference").wait()
    seconds = time.monotonic() - began
    reference = _digests(folder / "reference")
    chance = random.Random(_SEED)
    problems: list[str] = []
    kept = 0
    for number in range(options.kills):
        output = folder / f"killed{number}"
        process = _start(chosen, output)
        time.sleep(chance.uniform(0.1, 1.1) * seconds)
        process.kill()
        process.wait()
        finished = _digests(output) if output.is_dir() else {}
        kept += len(finished)
        _start(chosen, output).wait()
        problems += _problems(output, reference, finished, most_records=1)
    words = f"{options.kills} kills, {kept} of {options.kills * len(chosen)} jobs finished before them"
    return [
        "## Killed coordinators",
        "",
        "`kill -9` at random points of a batch, then the same batch again; compared with one that was not killed.",
        "",
        "| | | holds |",
        "|---|---|---|",
        f"| finished work kept, nothing half written, one result for each job | {words} | {_holds(not problems)} |",
        *(f"| | {problem} | **no** |" for problem in problems[:10]),
        "",
    ]


def _together(folder: Path, options: argparse.Namespace) -> list[str]:
    chosen = _small_jobs(options.small)
    _start(chosen, folder / "reference").wait()
    running = [_start(chosen, folder / "out", folder / "cache") for _ in range(2)]
    codes = [process.wait() for process in running]
    problems = _problems(folder / "out", _digests(folder / "reference"), {}, most_records=2)
    problems += [] if codes == [0, 0] else [f"exit codes {codes}"]
    exported = [record for record in _records(folder / "out") if record.source == "export"]
    words = f"{len(chosen)} jobs, {len(exported)} exports"
    return [
        "## Two coordinators at once",
        "",
        "On one output and one cache.",
        "",
        "| | | holds |",
        "|---|---|---|",
        f"| each job exported once or twice, with one result | {words} | {_holds(not problems)} |",
        *(f"| | {problem} | **no** |" for problem in problems[:10]),
        "",
    ]


def _records(output: Path) -> list[Record]:
    location = Location(output)
    return [read_record(location, name.id) for name in record_names(location)]


def _digests(output: Path) -> dict[str, str]:
    store = EntryStore(Location(output), named=True)
    found = {}
    for key in store.list_keys():
        entry = store.get(key)
        assert entry is not None
        found[key] = entry.digest
    return found


def _problems(output: Path, reference: dict[str, str], finished: dict[str, str], most_records: int) -> list[str]:
    """What is wrong with an output that should be as complete as the reference."""
    store = EntryStore(Location(output), named=True)
    found = []
    if _digests(output) != reference:
        found.append(f"{output.name}: other results than without the kill")
    if not finished.items() <= _digests(output).items():
        found.append(f"{output.name}: finished work was lost")
    with tempfile.TemporaryDirectory() as folder:
        for key in store.list_keys():
            entry = store.get(key)
            assert entry is not None
            # Fails if a file is missing or has another content.
            store.fetch(entry, Path(folder) / key)
    by_job: dict[str, list[Record]] = {}
    for record in _records(output):
        by_job.setdefault(record.job, []).append(record)
    for job, records in by_job.items():
        done = [record for record in records if record.source == "export"]
        if len({record.digest for record in records}) != 1 or len(done) > most_records:
            found.append(f"{output.name}: {job} has {len(done)} exports and {len(records)} records")
    return found


def _bad_input(folder: Path) -> list[str]:
    folder.mkdir()
    (folder / "unknown.toml").write_text("[[job]]\nmodel = 'a:b'\nopsett = 18\n", encoding="utf-8")
    (folder / "type.toml").write_text("[[job]]\nmodel = 'a:b'\nopset = 'x'\n", encoding="utf-8")
    good = f"{_FILE}:own(0,0)"
    cases = {
        "unknown field": [folder / "unknown.toml", "-o", folder / "out"],
        "wrong type": [folder / "type.toml", "-o", folder / "out"],
        "missing model": ["./no-such-model", "-o", folder / "out"],
        "unwritable place": [good, "-o", "/proc/nowhere"],
        "unknown storage": [good, "-o", "nothing://x"],
        "driver not installed": [good, "-o", "gs://bucket/x"],
        "Ray that does not answer": [good, "-o", folder / "out", "--engine", "ray", "--address", "127.0.0.1:1"],
    }
    lines = ["## Bad input", "", "| | error | exit code | holds |", "|---|---|---|---|"]
    for name, arguments in cases.items():
        command = [sys.executable, "-m", "modelexport", "batch", *map(str, arguments)]
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=120)
        errors = ended.stderr.strip().splitlines()
        holds = ended.returncode == 2 and len(errors) == 1 and not (folder / "out" / "records").exists()
        shown = " ".join(errors).replace(str(folder), "…").replace(_FILE, "nets.py").replace("|", "\\|")
        lines.append(f"| {name} | {shown} | {ended.returncode} | {_holds(holds)} |")
    return [*lines, "", "Uploads that break off, killed Ray workers and killed nodes: `make cluster`."]


if __name__ == "__main__":
    sys.exit(main())
