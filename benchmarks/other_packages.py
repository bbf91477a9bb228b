"""Export models of other packages with dynamic axes, run the files at other sizes, and write the page.

    python -m benchmarks.other_packages [--packages .venv/other-packages] [--only 'kornia:*'] [--minutes 30] \\
        [--cost 10] [--write docs/measurements/other-packages.md]

`make other-packages` installs the packages first, into a folder of their own that comes last on the path. A run resumes
where the last one stopped: a result counts as done if libraries and code are the same (`--mixed`: the libraries).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.package_models import MODELS
from benchmarks.package_verdicts import BROKEN, missed, page, verdict
from benchmarks.sweep_options import chosen, set_environment, sweep_parser
from benchmarks.sweep_process import as_record, limits_of
from benchmarks.sweep_records import current_setup, read_records, still_valid

from modelexport.processes import ProcessPool

_SCRIPTS = (
    *(f"package_models_{name}.py" for name in ("images", "sequences", "tables")),
    "package_model.py",
    "package_runs.py",
    "output_difference.py",
    "package_cost.py",
    "other_packages.txt",
)
# A model has so many steps at most that each may use up its time.
_STEPS = 20
_ROUNDS = 6
_COST_SECONDS = 900

Record = dict[str, Any]


def main() -> int:
    """Run what is left, and write the page; 1 if a file breaks a claim."""
    set_environment()
    options = _options()
    # Last, so that nothing in that folder replaces a module of this environment.
    sys.path.append(str(options.packages.resolve()))
    options.results.parent.mkdir(parents=True, exist_ok=True)
    setup = current_setup(scripts=_SCRIPTS)
    names = [str(model) for model in MODELS]
    wanted = chosen(names, options.only)[: options.count]
    limits = {"seconds": options.seconds}
    done = _with_missing(options.results, wanted, "measure", limits, setup, options)
    records = [done[name] for name in names if name in done]
    costs: list[Record] = []
    if options.cost:
        results = options.results.with_name("cost.jsonl")
        smallest = sorted(filter(_plain_cpu, records), key=_plain_cpu)[: options.cost]
        found = _with_missing(
            results, [record["name"] for record in smallest], "cost", {"rounds": _ROUNDS}, setup, options
        )
        costs = [found[record["name"]] for record in smallest if record["name"] in found]
    text = page(records, costs, _versions())
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    return int(any(verdict(record).kind in BROKEN or missed(record) for record in records))


def _options() -> argparse.Namespace:
    parser = sweep_parser(__doc__, "build/other-packages/results.jsonl", 180, "step")
    default = Path(sys.prefix, "other-packages")
    parser.add_argument("--packages", type=Path, default=default, help="the folder that the packages are installed in")
    parser.add_argument("--cost", type=int, default=0, help="measure the cost of so many models, the smallest")
    parser.add_argument("--again", action="store_true", help="run the chosen models again, done or not")
    parser.add_argument("--mixed", action="store_true", help="keep the results of other states of the code")
    parser.add_argument("--write", type=Path, default=None, help="the page")
    return parser.parse_args()


def _with_missing(
    results: Path, names: Sequence[str], job: str, payload: Record, setup: Record, options: argparse.Namespace
) -> dict[str, Record]:
    """The results there are, and those of the chosen models that had none."""
    done = still_valid(read_records(results), setup, mixed=options.mixed)
    left = [name for name in names if options.again or name not in done]
    for record in _run(left, job, payload, setup, options):
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        done[record["name"]] = record
    return done


def _run(
    names: Sequence[str], job: str, payload: Record, setup: Record, options: argparse.Namespace
) -> Iterator[Record]:
    """Each model in a process, one at a time; a record when it has ended."""
    function = {"measure": "benchmarks.package_runs:measure", "cost": "benchmarks.package_cost:measure"}[job]
    seconds = _STEPS * options.seconds if job == "measure" else _COST_SECONDS
    limits = limits_of(seconds, int(options.memory * 2**30))
    ends = time.monotonic() + 60 * options.minutes
    with ProcessPool("benchmarks.package_runs:prepare") as pool:
        for name in names:
            if time.monotonic() >= ends:
                return
            outcome = as_record(pool.run(function, {"name": name, **payload}, limits), limits)
            failed = {"name": name, "package": name.partition(":")[0], "error": outcome.get("error", "")}
            if job == "measure":
                record = {**outcome.get("value", failed), "cpu": outcome["cpu"], "setup": setup}
                print(_line(record), flush=True)
            else:
                record = {**failed, **outcome, "setup": setup}
                print(name, outcome.get("value", outcome.get("error")), flush=True)
            yield record


def _line(record: Record) -> str:
    found, more = verdict(record), missed(record)
    also = f"; plain torch also frees {', '.join(more)}" if more else ""
    also += "; asks for consent" * bool(record.get("ours", {}).get("value", {}).get("asked"))
    return f"{record['name']}: {found.kind} {found.why[:200]}{also} ({record['cpu']:.0f} s)"


def _plain_cpu(record: Record) -> float:
    """The CPU time of plain torch's dynamo export; 0 where there is none."""
    entries = [entry for entry in record.get("plain", []) if entry["exporter"] == "dynamo"]
    return next((entry["export"]["value"]["cpu"] for entry in entries if "value" in entry["export"]), 0.0)


def _versions() -> dict[str, str]:
    return {model.package: importlib.metadata.version(model.package) for model in MODELS}


if __name__ == "__main__":
    sys.exit(main())
