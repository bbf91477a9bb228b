"""Breaks attributions on purpose, and counts how many `validate --check-contamination` finds.

For each exported file, nodes are moved to another call, one at a time, in everything that the stores say. The file as
it was must give no alarm. Judged from the file alone, and with the model. `make breakage` runs it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from tests.support import nine, zoo
from tests.support.breaking import all_at_once, near_moves, random_moves, suspects, suspects_when_moved

import modelexport
from modelexport.analysis.contamination.owner_check import OwnerCheck
from modelexport.analysis.findings import Severity
from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.errors import ModelExportError
from modelexport.verification.contamination_by_value import check_owners_by_value

_SEED = 4
_MOST_NODES_MOVED = 0.1


@dataclasses.dataclass(frozen=True)
class File:
    """One way to export one model."""

    model: str
    strategy: str
    variant: str
    options: dict[str, Any]

    def build(self) -> zoo.ExampleModel:
        family, _, name = self.model.rpartition(":")
        return nine.build(name) if family else zoo.build(name)


@dataclasses.dataclass(frozen=True)
class Count:
    """How many of the moved nodes were found."""

    found: int = 0
    moved: int = 0

    def __str__(self) -> str:
        return f"{self.found / self.moved:.0%}" if self.moved else "-"


@dataclasses.dataclass
class Row:
    """The counts of one file: from the file alone, and with the model."""

    file: File
    nodes: int
    alarms: tuple[int, int]
    counts: dict[str, Count]


KINDS = ("file random", "file near", "file at once", "model random", "model near", "model at once")


def files(names: list[str], every_variant: bool) -> Iterator[File]:
    """The files to break: every model of the tests, by every strategy, static and dynamic, optimized and not."""
    for name in zoo.names():
        if names and name not in names:
            continue
        dynamic = zoo.build(name).dynamic_shapes
        yield File(name, "fx", "static", {})
        if every_variant:
            yield File(name, "fx", "static raw", {"optimize": False})
            if dynamic is not None:
                yield File(name, "fx", "dynamic", {"dynamic_shapes": dynamic})
                yield File(name, "fx", "dynamic raw", {"dynamic_shapes": dynamic, "optimize": False})
        yield File(name, "htp", "static", {})
        yield File(name, "usage_based", "static", {})
    for name in nine.NAMES:
        if not names or f"nine:{name}" in names:
            yield File(f"nine:{name}", "auto", "static", {})


def break_file(file: File, folder: Path, moves: int) -> Row | str:
    """Export, judge as it is, then break it; the reason where the model cannot be exported in this way."""
    example = file.build()
    path = folder / "model.onnx"
    try:
        modelexport.export_model(
            copy.deepcopy(example.model), example.inputs, path, strategy=file.strategy, overwrite=True, **file.options
        )
    except ModelExportError as error:
        return " ".join(str(error).split())[:160]
    subject = ValidatedFile(path)
    checks = {"file": subject.owner_check, "model": check_owners_by_value(subject, example.model, example.inputs)}
    alarms, counts = [], {}
    for name, check in checks.items():
        found = check.findings()
        for finding in found:
            print(f"    {finding.severity.value} {name}: {finding.node}: {finding.message}")
        alarms.append(sum(finding.severity is Severity.ERROR for finding in found))
        counts[f"{name} random"] = _count(check, random_moves(check.document, moves, _SEED))
        counts[f"{name} near"] = _count(check, near_moves(check.document, moves, _SEED))
        counts[f"{name} at once"] = _count_at_once(check, moves)
    return Row(file, len(subject.nodes), (alarms[0], alarms[1]), counts)


def _count(check: OwnerCheck, moves: list[tuple[str, str]]) -> Count:
    return Count(sum(node in suspects_when_moved(check, node, owner) for node, owner in moves), len(moves))


def _count_at_once(check: OwnerCheck, moves: int) -> Count:
    number = max(1, min(moves, int(len(check.document.nodes) * _MOST_NODES_MOVED)))
    owners = all_at_once(check.document, number, _SEED)
    return Count(len(owners.keys() & suspects(check, owners)), len(owners))


def rates(rows: list[Row]) -> list[tuple[object, ...]]:
    """The rows of the table: each file, each strategy, and all."""
    found: list[tuple[object, ...]] = []
    groups: dict[str, list[Row]] = {}
    for row in rows:
        labels = (row.file.model, row.file.strategy, row.file.variant)
        found.append((*labels, row.nodes, sum(row.alarms), *_counts([row])))
        groups.setdefault(f"**all, {row.file.strategy}**", []).append(row)
    for title, group in {**groups, "**all**": rows}.items():
        sums = (sum(row.nodes for row in group), sum(sum(row.alarms) for row in group))
        found.append((title, "", "", *sums, *_counts(group)))
    return found


def _counts(rows: list[Row]) -> list[Count]:
    """For each kind of move, the counts of all rows together."""
    counts = [[row.counts[kind] for row in rows] for kind in KINDS]
    return [Count(sum(c.found for c in of_kind), sum(c.moved for c in of_kind)) for of_kind in counts]


def _break_and_tell(file: File, moves: int) -> Row | str:
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, quiet():
        row = break_file(file, Path(folder), moves)
    label = f"{file.model:20} {file.strategy:12} {file.variant:12}"
    if isinstance(row, str):
        print(f"{label} not exported: {row}", flush=True)
    else:
        counts = " ".join(f"{kind} {row.counts[kind]!s:>5}" for kind in KINDS)
        seconds = time.perf_counter() - started
        print(f"{label} {row.nodes:4} nodes, alarms {row.alarms}, {counts}, {seconds:.0f} s", flush=True)
    return row


def main() -> int:
    """Break the files, print the rates, and say by the exit code whether they are good enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[], help="names of the tests' models; nine:NAME for the nine")
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--every-variant", action="store_true", help="dynamic shapes and raw graphs too")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--write", type=Path, help="the page with the table")
    options = parser.parse_args()
    wanted = list(files(options.models, options.every_variant))
    # Processes of their own: torch keeps the state of its exporters in globals.
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        broken = list(pool.map(_break_and_tell, wanted, [options.moves] * len(wanted)))
    rows = [row for row in broken if isinstance(row, Row)]
    found = rates(rows)
    print(*found[-1], sep=" | ")
    if options.write is not None:
        head = ("model", "strategy", "graph", "nodes", "false alarms", *KINDS)
        versions = f"torch {torch.__version__}, {options.moves} wrong owners of each kind for each file."
        replace_part(options.write, "breakage", f"{versions}\n\n{table(head, found)}")
    weak = [row for row in rows if _rate(row.counts["file random"]) < 0.7 or _rate(row.counts["model random"]) < 0.9]
    for row in weak:
        print(f"too few are found: {row.file.model}, {row.file.strategy}, {row.file.variant}")
    return 1 if weak or any(sum(row.alarms) for row in rows) else 0


def _rate(count: Count) -> float:
    return count.found / count.moved if count.moved else 1.0


if __name__ == "__main__":
    sys.exit(main())
