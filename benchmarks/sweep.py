"""Export every architecture, each in its own process; write the results as JSONL and as a page.

All model types of the installed transformers, all families of timm and all models of diffusers, each built small from
its configuration. A run resumes where the last one stopped. The order is shuffled with a fixed seed, so that `--count`
chooses a fair sample; of the models chosen, those that took longest last time start first.

    python -m benchmarks.sweep [--jobs 16] [--ours] [--count 100] [--minutes 30] [--only 'timm:*'] \\
        [--write docs/measurements/sweep.md]

The file of results is only added to. A result counts as done if libraries and code are the same (`--mixed`: the
libraries). The exports of other exporters are taken from any earlier result with the same libraries and configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sweep_causes import works
from benchmarks.sweep_options import chosen, set_environment, sweep_parser
from benchmarks.sweep_page import page
from benchmarks.sweep_process import Running
from benchmarks.sweep_records import current_setup, known_exports, longest_first, read_records, still_valid

_WAIT_SECONDS = 0.2
# A model has so many steps that each may use up its time.
_STEPS = 9
_STEPS_OF_OURS = 3


def main() -> int:
    """Run what is left, and write the page."""
    set_environment()
    options = _options()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    setup = current_setup(options.commit)
    earlier = list(read_records(options.results))
    done = still_valid(earlier, setup, mixed=options.mixed)
    known = known_exports(earlier, setup)
    with _prepared(known) as (candidates, preparation):
        wanted = chosen(candidates, options.only)[: options.count]
        left = [c for c in wanted if options.again or not _is_done(done.get(str(c)), ours_only=options.ours)]
        for record in _run(longest_first(left, earlier), preparation, setup, options):
            done[record["name"]] = record
    exist = {
        source: sum(c.source == source for c in candidates) for source in dict.fromkeys(c.source for c in candidates)
    }
    names = {str(c) for c in candidates}
    text = page([record for name, record in done.items() if name in names], exist)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
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


@contextlib.contextmanager
def _prepared(known: dict[str, Any]) -> Iterator[tuple[list[Any], Any]]:
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
                candidate,
                Limits(options.seconds, int(options.memory * 2**30)),
                known.get(str(candidate), {}),
                ours_only=options.ours,
            ),
        )


def _run(
    waiting: list[Any], sweep_one: Any, setup: dict[str, Any], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Each candidate in a process, so many at a time; a record when one has ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    steps = _STEPS_OF_OURS if options.ours else _STEPS
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
                    seconds, memory = steps * options.seconds, int(2 * options.memory * 2**30)
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
                    record |= {"cpu": outcome["cpu"], "setup": setup}
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
