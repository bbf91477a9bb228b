"""Export every architecture, each in its own process; write the results as JSONL and as a page.

All model types of the installed transformers, all families of timm and all models of diffusers, each built small from
its configuration. A run resumes where the last one stopped. The order is shuffled with a fixed seed, so that `--count`
chooses a fair sample; of the models chosen, those that took longest last time start first.

    python -m benchmarks.sweep [--jobs 16] [--ours] [--count 100] [--minutes 30] [--only 'timm:*'] \\
        [--write docs/measurements/sweep.md]

The file of results is only added to. With `--write`, the last result of each model is kept beside the page too, so that
another machine resumes. A result counts as done if libraries and code are the same (`--mixed`: the libraries). The
exports of other exporters are taken from any earlier result with the same libraries and configuration.
"""

from __future__ import annotations

import argparse
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
from benchmarks.sweep_records import (
    current_setup,
    keep_records,
    known_exports,
    longest_first,
    read_records,
    still_valid,
)

from modelexport.processes import Ending, ProcessPool

# A model has so many steps that each may use up its time.
_STEPS = 9
_STEPS_OF_OURS = 3
_KEPT = Path(__file__).parents[1] / "docs/measurements/sweep.jsonl.gz"


def main() -> int:
    """Run what is left, and write the page."""
    set_environment()
    options = _options()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    setup = current_setup(options.commit)
    earlier = [*read_records(_KEPT), *read_records(options.results)]
    done = still_valid(earlier, setup, mixed=options.mixed)
    known = known_exports(earlier, setup)
    with ProcessPool("benchmarks.sweep_job:prepare") as pool:
        listed = pool.run("benchmarks.sweep_job:list_names", None)
        if listed.ending is not Ending.RETURNED:
            raise SystemExit(f"the models cannot be listed: {listed.error or listed.detail}")
        names: list[str] = listed.value
        wanted = chosen(names, options.only)[: options.count]
        left = [name for name in wanted if options.again or not _is_done(done.get(name), ours_only=options.ours)]
        for record in _run(longest_first(left, earlier), pool, known, setup, options):
            done[record["name"]] = record
    exist = dict(Counter(_source(name) for name in names))
    text = page([record for name, record in done.items() if name in set(names)], exist)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
        # The exports of others stay known, whatever our code.
        keep_records({**{record["name"]: record for record in earlier}, **done}.values(), _KEPT)
    else:
        print(text)
    return 0


def _options() -> argparse.Namespace:
    parser = sweep_parser(__doc__, "build/sweep/results.jsonl", 240, "step")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many models at a time")
    parser.add_argument("--ours", action="store_true", help="leave out the other exporters and their comparison")
    parser.add_argument("--again", action="store_true", help="run the chosen models again, done or not")
    parser.add_argument("--mixed", action="store_true", help="keep the results of other states of the code")
    parser.add_argument("--commit", default=None, help="the commit, on a machine without the repository")
    parser.add_argument("--write", type=Path, default=None, help="the page")
    return parser.parse_args()


def _is_done(record: dict[str, Any] | None, *, ours_only: bool) -> bool:
    """Whether there is a result with all that is asked for."""
    if record is None or ours_only or not works(record, "forward"):
        return record is not None
    return "torchscript" in record and ("checks" in record or not works(record, "ours"))


def _run(
    names: list[str], pool: ProcessPool, known: dict[str, Any], setup: dict[str, Any], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Each model in a process, so many at a time; a record when one has ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    steps = _STEPS_OF_OURS if options.ours else _STEPS
    memory = int(options.memory * 2**30)
    limits = limits_of(steps * options.seconds, 2 * memory)
    ends = time.monotonic() + 60 * options.minutes

    def sweep(name: str) -> dict[str, Any] | None:
        if time.monotonic() >= ends:
            return None
        payload = {"name": name, "seconds": options.seconds, "memory": memory, "ours": options.ours}
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
                record = {**(outcome.get("value") or failed), "cpu": outcome["cpu"], "setup": setup}
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
