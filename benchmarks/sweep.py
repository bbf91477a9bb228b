"""Export every architecture, each in its own process; write the results as JSONL and as a page.

All model types of the installed transformers, all families of timm and all models of diffusers, each built small from
its configuration. A run resumes where the last one stopped. The order is shuffled with a fixed seed, so that `--count`
chooses a fair sample; of the models chosen, those that took longest last time start first.

    python -m benchmarks.sweep [--jobs 16] [--measure ours] [--count 100] [--minutes 30] [--only 'timm:*'] \\
        [--write docs/measurements/sweep.md]

`--measure probes` and `--measure sizes` measure the proof of our files instead, on other values and at other sizes,
with results and a page of their own. Models that run no forward pass in the sweep are left out.

    python -m benchmarks.sweep --measure probes --count 260 --seed 29 --write docs/measurements/probes.md

The file of results is only added to. With `--write`, the last result of each model is kept beside the page too, so that
another machine resumes. A result counts as done if libraries and code are the same (`--mixed`: the libraries). The
exports of other exporters are taken from any earlier result with the same libraries and configuration.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.sweep_causes import works
from benchmarks.sweep_options import chosen, set_environment, sweep_parser
from benchmarks.sweep_page import page
from benchmarks.sweep_process import as_record, limits_of
from benchmarks.sweep_proof_page import proof_page
from benchmarks.sweep_records import (
    MEASURES,
    PROOFS,
    current_setup,
    keep_records,
    key_of,
    known_exports,
    longest_first,
    read_records,
    still_valid,
)

from modelexport.processes import Ending, ProcessPool

# A model has so many steps that each may use up its time.
_STEPS = 9
_STEPS_OF_OURS = 3
# The CPU time of an export that starts last on one core.
_LONG_S = 8
_KEPT = Path(__file__).parents[1] / "docs/measurements/sweep.jsonl.gz"
_KEPT_PROOFS = _KEPT.with_name("probes.jsonl.gz")


def main() -> int:
    """Run what is left, and write the page."""
    set_environment()
    options = _options()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    setup = current_setup(options.commit)
    is_proof = options.measure in PROOFS
    kept = _KEPT_PROOFS if is_proof else _KEPT
    earlier = [*read_records(kept), *read_records(options.results)]
    done = still_valid(earlier, setup, mixed=options.mixed)
    known = {} if is_proof else known_exports(earlier, setup)
    with ProcessPool("benchmarks.sweep_job:prepare") as pool:
        listed = pool.run("benchmarks.sweep_job:list_names", None)
        if listed.ending is not Ending.RETURNED:
            raise SystemExit(f"the models cannot be listed: {listed.error or listed.detail}")
        names: list[str] = listed.value
        wanted = chosen(_in_order(names, options.seed), options.only)[: options.count]
        swept = {record["name"]: record for record in read_records(_KEPT)} if is_proof else {}
        left = [
            name
            for name in wanted
            if (options.again or not _is_done(done.get(_key(name, options.measure)), options.measure))
            and works(swept.get(name, {"forward": {}}), "forward")
        ]
        # Of a run on one core that ends early, what is done is a fair sample too, but for the few that take minutes.
        cpu = {name: record.get("ours", {}).get("cpu", 0) for name, record in swept.items()}
        in_order = sorted(left, key=lambda name: cpu.get(name, 0) > _LONG_S)
        ordered = longest_first(left, earlier) if options.jobs > 1 else in_order
        for record in _run(ordered, pool, known, setup, options):
            done[key_of(record)] = record
    if is_proof:
        text = proof_page(wanted, done, swept, options.seed)
    else:
        exist = dict(Counter(_source(name) for name in names))
        text = page([record for name, record in done.items() if name in set(names)], exist)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
        # The exports of others stay known, whatever our code.
        keep_records({**{key_of(record): record for record in earlier}, **done}.values(), kept)
    else:
        print(text)
    return 0


def _options() -> argparse.Namespace:
    parser = sweep_parser(__doc__, "", 240, "step")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many models at a time")
    parser.add_argument("--measure", choices=MEASURES, default=MEASURES[0], help="all exporters, ours, or its proof")
    parser.add_argument("--seed", type=int, default=0, help="shuffle the models by this seed")
    parser.add_argument("--again", action="store_true", help="run the chosen models again, done or not")
    parser.add_argument("--mixed", action="store_true", help="keep the results of other states of the code")
    parser.add_argument("--commit", default=None, help="the commit, on a machine without the repository")
    parser.add_argument("--write", type=Path, default=None, help="the page")
    options = parser.parse_args()
    if options.results == Path():
        options.results = Path("build/sweep", "proofs.jsonl" if options.measure in PROOFS else "results.jsonl")
    return options


def _in_order(names: list[str], seed: int) -> list[str]:
    """The models in an order that makes any beginning of it a fair sample, another one for each seed."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())


def _key(name: str, measure: str) -> str:
    return key_of({"name": name, "measured": measure})


def _is_done(record: dict[str, Any] | None, measure: str) -> bool:
    """Whether there is a result with all that is asked for."""
    if record is None or measure != MEASURES[0] or not works(record, "forward"):
        return record is not None
    return "torchscript" in record and ("checks" in record or not works(record, "ours"))


def _run(
    names: list[str], pool: ProcessPool, known: dict[str, Any], setup: dict[str, Any], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Each model in a process, so many at a time; a record when one has ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    steps = _STEPS if options.measure == MEASURES[0] else _STEPS_OF_OURS
    memory = int(options.memory * 2**30)
    limits = limits_of(steps * options.seconds, 2 * memory)
    ends = time.monotonic() + 60 * options.minutes

    def sweep(name: str) -> dict[str, Any] | None:
        if time.monotonic() >= ends:
            return None
        payload = {"name": name, "seconds": options.seconds, "memory": memory, "measured": options.measure}
        return as_record(
            pool.run("benchmarks.sweep_job:sweep", {**payload, "known": known.get(name, {})}, limits), limits
        )

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with (
        Progress(*columns) as progress,
        options.results.open("a", encoding="utf-8") as results,
        ThreadPoolExecutor(options.jobs) as threads,
    ):
        task = progress.add_task("", total=len(names))
        running = {threads.submit(sweep, name): name for name in names}
        try:
            for future in as_completed(running):
                outcome, name = future.result(), running[future]
                if outcome is None:
                    continue
                failed = {"name": name, "source": _source(name), "built": {"error": outcome.get("error", "")}}
                of = {"measured": options.measure, "cpu": outcome["cpu"], "setup": setup}
                record = {**(outcome.get("value") or failed), **of}
                results.write(json.dumps(record) + "\n")
                results.flush()
                progress.update(task, advance=1, description=_line(record))
                yield record
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.stop_all()


def _source(name: str) -> str:
    return name.partition(":")[0]


def _line(record: dict[str, Any]) -> str:
    for step in ("built", "forward", "ours"):
        if "error" in record.get(step, {}):
            return f"{record['name']}: {step} failed"
    ours = record["ours"]["value"]
    return f"{record['name']}: {ours['exporter']}, {ours['check']['outcome']}"


if __name__ == "__main__":
    sys.exit(main())
