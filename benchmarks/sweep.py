"""Export every architecture, each in its own process; write the results as JSONL and as a page.

All model types of the installed transformers, all families of timm and all models of diffusers, each built small from
its configuration. A run resumes where the last one stopped. The order is shuffled with a fixed seed, so a part is a
fair sample.

    python -m benchmarks.sweep [--jobs 2] [--count 100] [--minutes 30] [--only 'timm:*'] \\
        [--write docs/measurements/sweep.md]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# One core for each model; before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nothing is downloaded.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.sweep_options import chosen, read_records, sweep_parser
from benchmarks.sweep_page import page
from benchmarks.sweep_process import Running

_WAIT_SECONDS = 0.2
# A model has so many steps that each may use up its time.
_STEPS = 7


def main() -> int:
    """Run what is left, and write the page."""
    options = _options()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if options.again:
        options.results.unlink(missing_ok=True)
    done = {record["name"]: record for record in read_records(options.results)}
    with _prepared() as (candidates, preparation):
        wanted = chosen(candidates, options.only)[: options.count]
        for record in _run([c for c in wanted if str(c) not in done], preparation, options):
            done[record["name"]] = record
    exist = {
        source: sum(c.source == source for c in candidates) for source in dict.fromkeys(c.source for c in candidates)
    }
    known = {str(c) for c in candidates}
    text = page([record for name, record in done.items() if name in known], exist)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def _options() -> argparse.Namespace:
    parser = sweep_parser(__doc__, "build/sweep/results.jsonl", 240, "step")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at a time")
    parser.add_argument("--ours", action="store_true", help="leave out the other exporters and their comparison")
    parser.add_argument("--again", action="store_true", help="discard the results so far")
    parser.add_argument("--write", type=Path, default=None, help="the page")
    return parser.parse_args()


@contextlib.contextmanager
def _prepared() -> Iterator[tuple[list[Any], Any]]:
    """The candidates, and how one is swept: the libraries are imported here, before processes are forked."""
    import torch
    from tests.support.faster_exports import faster_exports

    torch.set_num_threads(1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with faster_exports():
        from benchmarks.sweep_candidates import list_candidates
        from benchmarks.sweep_steps import Limits, sweep_one
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        # What every export does first.
        ONNXRegistry.from_torchlib()
        yield (
            list_candidates(),
            lambda candidate, options: sweep_one(
                candidate, Limits(options.seconds, int(options.memory * 2**30)), ours_only=options.ours
            ),
        )


def _run(waiting: Iterable[Any], sweep_one: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each candidate in a process, so many at a time; a record when one has ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    waiting = list(waiting)
    ends = time.monotonic() + 60 * options.minutes
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    running: dict[Any, Running] = {}
    # No thread that redraws: one that holds a lock while a process is forked would hold it there for ever.
    with Progress(*columns, auto_refresh=False) as progress, options.results.open("a", encoding="utf-8") as results:
        task = progress.add_task("", total=len(waiting))
        try:
            while waiting or running:
                while waiting and len(running) < options.jobs and time.monotonic() < ends:
                    candidate = waiting.pop(0)
                    seconds, memory = _STEPS * options.seconds, int(2 * options.memory * 2**30)
                    running[candidate] = Running(lambda c=candidate: sweep_one(c, options), seconds, memory)
                if not running:
                    break
                for candidate, process in list(running.items()):
                    outcome = process.poll()
                    if outcome is None:
                        continue
                    del running[candidate]
                    record = outcome.get("value") or {
                        "name": str(candidate),
                        "source": candidate.source,
                        "built": {"error": outcome.get("error", "")},
                    }
                    record["cpu"] = outcome["cpu"]
                    results.write(json.dumps(record) + "\n")
                    results.flush()
                    progress.update(task, advance=1, description=_line(record), refresh=True)
                    yield record
                time.sleep(_WAIT_SECONDS)
        finally:
            for process in running.values():
                process.stop()


def _line(record: dict[str, Any]) -> str:
    for step in ("built", "forward", "ours"):
        if "error" in record.get(step, {}):
            return f"{record['name']}: {step} failed"
    ours = record["ours"]["value"]
    return f"{record['name']}: {ours['exporter']}, {ours['check']['outcome']}"


if __name__ == "__main__":
    sys.exit(main())
