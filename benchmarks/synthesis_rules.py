"""Which rules of the input synthesis find the inputs of the sweep's models, and which of them a model needs.

Every model of the sweep is built small and inputs are synthesized for it, without an export: one model at a time, each
in its own process with limits. A run goes on where the last one stopped.

    python -m benchmarks.synthesis_rules [--count 321] [--minutes 30] [--only 'timm:*'] [--necessity]

With `--necessity`, the models that a repair helped to win are run again without it, until two of them are lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from typing import Any

from benchmarks.quiet import quiet
from benchmarks.sweep_causes import works
from benchmarks.sweep_options import chosen, set_environment, sweep_parser
from benchmarks.sweep_page import rule_table
from benchmarks.sweep_process import run_limited
from benchmarks.sweep_records import read_records

_MAX_ABLATED = 12
_ENOUGH_LOST = 2


def main() -> int:
    """Run what is left, and print the tables."""
    set_environment()
    options = _options()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    # Before the processes are forked.
    import torch

    torch.set_num_threads(1)
    from benchmarks.sweep_candidates import list_candidates

    candidates = chosen(list_candidates()[: options.count], options.only)
    with options.results.open("a", encoding="utf-8") as file:
        known = {(record["name"], record["without"]): record for record in read_records(options.results)}
        measured = _Measured(known, file, options)
        records = [record for c in candidates if (record := measured.get(c)) is not None]
        built = [record for record in records if works(record, "built")]
        won = [record for record in built if works(record, "forward")]
        print(f"{len(records)} models, {len(built)} built, {len(won)} with inputs\n")
        print("\n".join(rule_table(records)))
        if options.necessity:
            _print_necessity(measured, candidates)
    return 0


def _options() -> argparse.Namespace:
    parser = sweep_parser(__doc__, "build/synthesis/rules.jsonl", 200, "model")
    parser.add_argument("--necessity", action="store_true", help="run again without each repair")
    options = parser.parse_args()
    options.ends = time.monotonic() + 60 * options.minutes
    return options


class _Measured:
    """The results so far; a missing one is measured while there is time."""

    def __init__(self, records: dict[tuple[str, str], dict[str, Any]], file: Any, options: argparse.Namespace) -> None:
        self._records = records
        self._file = file
        self._options = options

    def get(self, candidate: Any, without: str = "") -> dict[str, Any] | None:
        """The record of a model, with all repairs or without one of them; None when the time is over."""
        key = (str(candidate), without)
        if key not in self._records and time.monotonic() < self._options.ends:
            memory = int(self._options.memory * 2**30)
            outcome = run_limited(lambda: _synthesize(candidate, without), self._options.seconds, memory)
            failed = {"source": candidate.source, "built": {"error": outcome.get("error", "")}}
            record = {"name": key[0], "without": without, **outcome.get("value", failed)}
            self._records[key] = record
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        return self._records.get(key)


def _synthesize(candidate: Any, without: str) -> dict[str, Any]:
    from benchmarks.sweep_steps import build_with_inputs

    record: dict[str, Any] = {"source": candidate.source}
    with quiet():
        build_with_inputs(candidate, record, without=(without,) if without else ())
    return record


def _print_necessity(measured: _Measured, candidates: list[Any]) -> None:
    """For each repair, how many of the models that it helped to win are lost without it."""
    helped: dict[str, list[Any]] = defaultdict(list)
    for candidate in candidates:
        record = measured.get(candidate)
        if record is not None and works(record, "forward"):
            for rule in dict.fromkeys(record["forward"]["rules"][1:]):
                helped[rule].append(candidate)
    print("\n| repair | models it helped | run without it | lost |\n|---|---|---|---|")
    for rule, users in sorted(helped.items(), key=lambda item: len(item[1])):
        lost: list[str] = []
        tried = 0
        for candidate in users[:_MAX_ABLATED]:
            record = measured.get(candidate, rule)
            if record is not None:
                tried += 1
                lost += [] if works(record, "forward") else [str(candidate)]
            if len(lost) == _ENOUGH_LOST:
                break
        print(f"| {rule} | {len(users)} | {tried} | {', '.join(lost) or '-'} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
