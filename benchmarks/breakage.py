"""Assign wrong owners on purpose, and count how many `validate --check-contamination` finds.

For each exported file, one node at a time gets another owner in all stores. The unchanged file must give no error. Both
checks are measured: from the file alone, and with the model. `make breakage` runs it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import logging
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support import nine, zoo
from tests.support.breaking import all_at_once, near_moves, random_moves, with_owners

import modelexport
from modelexport.analysis.contamination.check import Evidence, contamination_findings
from modelexport.analysis.contamination.claimed_owners import Claims
from modelexport.analysis.findings import Severity
from modelexport.analysis.validation.validated_file import ValidatedFile
from modelexport.errors import ModelExportError
from modelexport.verification.contamination_by_value import gather_evidence

_MARK = "<!-- written by benchmarks/breakage.py -->"
_SEED = 4
_MOST_NODES_MOVED = 0.1


@dataclasses.dataclass(frozen=True)
class File:
    """A model, and the strategy and options to export it with."""

    model: str
    strategy: str
    variant: str
    options: dict[str, Any]

    def build(self) -> zoo.Specimen:
        family, _, name = self.model.rpartition(":")
        return nine.build(name) if family else zoo.build(name)


@dataclasses.dataclass
class Count:
    """How many of the nodes with a wrong owner were found."""

    found: int = 0
    moved: int = 0

    def __str__(self) -> str:
        return f"{self.found / self.moved:.0%}" if self.moved else "-"

    def add(self, other: Count) -> None:
        self.found += other.found
        self.moved += other.moved


@dataclasses.dataclass
class Row:
    """The counts of one file: from the file alone, and with the model."""

    file: File
    nodes: int
    alarms: tuple[int, int]
    counts: dict[str, Count]


KINDS = ("file random", "file near", "file at once", "model random", "model near", "model at once")


def files(names: list[str], every_variant: bool) -> Iterator[File]:
    """Every test model with every strategy, static and dynamic, optimized and not."""
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
    """Export, check the file as it is, then with wrong owners; a string says why the export failed."""
    specimen = file.build()
    path = folder / "model.onnx"
    try:
        modelexport.export_model(
            copy.deepcopy(specimen.model), specimen.inputs, path, strategy=file.strategy, overwrite=True, **file.options
        )
    except ModelExportError as error:
        return " ".join(str(error).split())[:160]
    subject = ValidatedFile(path)
    evidence_by_source = {"file": subject.evidence, "model": gather_evidence(subject, specimen.model, specimen.inputs)}
    alarms, counts = [], {}
    for name, evidence in evidence_by_source.items():
        found = contamination_findings(evidence, evidence.suspicions())
        for finding in found:
            print(f"    {finding.severity.value} {name}: {finding.node}: {finding.message}")
        alarms.append(sum(finding.severity is Severity.ERROR for finding in found))
        counts[f"{name} random"] = _count(evidence, random_moves(evidence.document, moves, _SEED))
        counts[f"{name} near"] = _count(evidence, near_moves(evidence.document, moves, _SEED))
        counts[f"{name} at once"] = _count_at_once(evidence, moves)
    return Row(file, len(subject.nodes), (alarms[0], alarms[1]), counts)


def _count(evidence: Evidence, moves: list[tuple[str, str]]) -> Count:
    claims = Claims(evidence.document, evidence.flow, evidence.calls)
    return Count(sum(node in evidence.suspects_when_moved(node, owner, claims) for node, owner in moves), len(moves))


def _count_at_once(evidence: Evidence, moves: int) -> Count:
    number = max(1, min(moves, int(len(evidence.document.nodes) * _MOST_NODES_MOVED)))
    owners = all_at_once(evidence.document, number, _SEED)
    return Count(len(owners.keys() & _suspects(evidence, owners)), len(owners))


def _suspects(evidence: Evidence, owners: dict[str, str]) -> set[str]:
    claims = Claims(with_owners(evidence.document, owners), evidence.flow, evidence.calls)
    return {evidence.flow.ids[suspicion.node] for suspicion in evidence.suspicions(claims)}


def table(rows: list[Row]) -> str:
    """The rates in Markdown, for each model and for each strategy."""
    head = ("model", "strategy", "graph", "nodes", "false alarms", *KINDS)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (row.file.model, row.file.strategy, row.file.variant, row.nodes, sum(row.alarms))
        lines.append("| " + " | ".join(map(str, (*cells, *(row.counts[kind] for kind in KINDS)))) + " |")
    strategies = dict.fromkeys(row.file.strategy for row in rows)
    lines.extend(_total(f"**all, {s}**", [row for row in rows if row.file.strategy == s]) for s in strategies)
    lines.append(_total("**all**", rows))
    return "\n".join(lines)


def _total(title: str, rows: list[Row]) -> str:
    sums = {kind: Count() for kind in KINDS}
    for row in rows:
        for kind in KINDS:
            sums[kind].add(row.counts[kind])
    cells = (title, "", "", sum(row.nodes for row in rows), sum(sum(row.alarms) for row in rows))
    return "| " + " | ".join(map(str, (*cells, *(sums[kind] for kind in KINDS)))) + " |"


def write(page: Path, rows: list[Row], moves: int) -> None:
    """Replace the table at the end of the page."""
    text = page.read_text().split(_MARK)[0].rstrip()
    versions = f"torch {torch.__version__}, {moves} wrong owners of each kind for each file."
    page.write_text(f"{text}\n\n{_MARK}\n{versions}\n\n{table(rows)}\n")


def _break_and_tell(file: File, moves: int) -> Row | str:
    _be_quiet()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        row = break_file(file, Path(folder), moves)
    label = f"{file.model:20} {file.strategy:12} {file.variant:12}"
    if isinstance(row, str):
        print(f"{label} not exported: {row}", flush=True)
    else:
        rates = " ".join(f"{kind} {row.counts[kind]!s:>5}" for kind in KINDS)
        seconds = time.perf_counter() - started
        print(f"{label} {row.nodes:4} nodes, alarms {row.alarms}, {rates}, {seconds:.0f} s", flush=True)
    return row


def _be_quiet() -> None:
    warnings.simplefilter("ignore")
    for name in ("torch.onnx", "onnxscript", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> int:
    """Measure, print the rates, and return 1 if a rate is too low or an unchanged file has an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[], help="names of test models, or nine:NAME")
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--every-variant", action="store_true", help="also dynamic shapes and unoptimized graphs")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--write", type=Path, help="the Markdown page whose table is replaced")
    options = parser.parse_args()
    _be_quiet()
    wanted = list(files(options.models, options.every_variant))
    # Separate processes: torch keeps the state of its exporters in globals.
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        broken = list(pool.map(_break_and_tell, wanted, [options.moves] * len(wanted)))
    rows = [row for row in broken if isinstance(row, Row)]
    print(table(rows).splitlines()[-1])
    if options.write is not None:
        write(options.write, rows, options.moves)
    weak = [row for row in rows if _rate(row.counts["file random"]) < 0.7 or _rate(row.counts["model random"]) < 0.9]
    for row in weak:
        print(f"too few wrong owners are found: {row.file.model}, {row.file.strategy}, {row.file.variant}")
    return 1 if weak or any(sum(row.alarms) for row in rows) else 0


def _rate(count: Count) -> float:
    return count.found / count.moved if count.moved else 1.0


if __name__ == "__main__":
    sys.exit(main())
