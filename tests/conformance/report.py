"""Score every case, for our strategies and for torch's own metadata, and write docs/measurements/conformance.md.

python -m tests.conformance.report --write docs/measurements/conformance.md
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet

import modelexport
from tests.conformance import criteria
from tests.conformance.bench import Bench, Column
from tests.conformance.case import CRITERIA, DYNAMIC, DYNAMO, STRATEGIES, TORCHSCRIPT, Case, all_cases
from tests.conformance.raw import plain_column
from tests.support.faster_exports import faster_exports

_RAW = {"raw dynamo": (*DYNAMO, *DYNAMIC[:2]), "raw TorchScript": (*TORCHSCRIPT, *DYNAMIC[2:])}
_COLUMNS = (*STRATEGIES, *_RAW)


@dataclasses.dataclass
class Score:
    """The counts of a column over all its files."""

    nodes: int = 0
    owned: int = 0
    judged: int = 0
    wrong: int = 0
    ran: int = 0
    lost: int = 0
    files_with_expectations: int = 0
    files_met: int = 0
    pairs: int = 0
    apart: int = 0
    files: int = 0
    plain: bool = True

    def add(self, column: Column) -> None:
        verdict = criteria.verdict(column)
        good, total = criteria.told_apart(column)
        truth = column.truth
        self.files += 1
        self.nodes += len(column.file.nodes)
        self.owned += len(column.file.nodes) - len(criteria.unowned(column))
        self.judged += verdict.judged
        self.wrong += len(verdict.contaminated)
        self.ran += len(criteria.truth_names(column, truth.running - truth.case.removed_from(column.kind)))
        self.lost += len(criteria.lost(column))
        self.files_with_expectations += criteria.has_expectations(column)
        self.files_met += criteria.has_expectations(column) and not criteria.unmet(column)
        self.pairs += total
        self.apart += good

    def include(self, other: Score) -> None:
        for field in dataclasses.fields(self):
            if field.type in ("int", int):
                setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        if not self.files:
            return "-"
        return " · ".join(
            (
                f"{_percent(self.owned, self.nodes)}",
                f"{self.wrong}",
                f"{self.lost}",
                _answer(self.files_met, self.files_with_expectations),
                _answer(self.apart, self.pairs),
            )
        ) + ("" if self.plain else " ¹")

    def totals(self) -> str:
        return " · ".join(
            (
                f"{_percent(self.owned, self.nodes)} of {self.nodes}",
                f"{self.wrong} of {self.judged}",
                f"{self.lost} of {self.ran}",
                f"{self.files_met} of {self.files_with_expectations}",
                f"{self.apart} of {self.pairs}",
            )
        )


def _percent(part: int, whole: int) -> str:
    # Never rounded up to 100 %.
    return "100 %" if part == whole else f"{min(99, round(100 * part / whole))} %"


def _answer(good: int, total: int) -> str:
    return "-" if not total else "yes" if good == total else "no"


def score(names: Iterable[str], folder: Path) -> dict[str, dict[str, Score]]:
    """The scores by case and column."""
    bench = Bench(folder)
    found: dict[str, dict[str, Score]] = {}
    for name in names:
        case = all_cases()[name]
        found[name] = {column: Score() for column in _COLUMNS}
        for strategy, kind in case.columns():
            found[name][strategy].add(bench.column(name, case, strategy, kind))
        for column, kinds in _RAW.items():
            for kind in kinds:
                if case.applies(kind):
                    tagged, plainly = plain_column(bench, folder, name, case, kind)
                    found[name][column].add(tagged)
                    found[name][column].plain &= plainly
        print(f"{name:40}", " | ".join(map(str, found[name].values())), flush=True)  # noqa: T201  progress of a script
    return found


def scores(found: dict[str, dict[str, Score]]) -> str:
    """The scores as a Markdown table, with their totals."""
    totals = {column: Score() for column in _COLUMNS}
    for scored in found.values():
        for column, one in scored.items():
            totals[column].include(one)
    rows = [(all_cases()[name].title, *scored.values()) for name, scored in found.items()]
    return table(("case", *_COLUMNS), [*rows, ("**all**", *(totals[column].totals() for column in _COLUMNS))])


def shortcomings(cases: dict[str, Case]) -> list[str]:
    """What the strategies and exporters do not support, according to the cases."""
    lines = []
    for case in cases.values():
        reasons: dict[tuple[str, str], list[str]] = {}
        for (pattern, criterion), why in case.unsupported.items():
            reasons.setdefault((pattern.partition(":")[0], why), []).append(criterion)
        for (strategy, why), about in reasons.items():
            told = ", ".join(criterion for criterion in CRITERIA if criterion in about)
            lines.append(f"- **{case.title}**, `{strategy}` ({told}): {why}.")
        lines += [f"- **{case.title}**, {pattern.rstrip('*')}: {why}." for pattern, why in case.refused.items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the Markdown page whose table is replaced")
    parser.add_argument("--case", action="append", help="only these cases")
    arguments = parser.parse_args()
    names = arguments.case or list(all_cases())
    with tempfile.TemporaryDirectory() as folder, faster_exports(), quiet():
        found = score(names, Path(folder))
    if arguments.write is not None:
        versions = f"{len(found)} cases, torch {torch.__version__}, modelexport {modelexport.__version__}."
        cases = {name: all_cases()[name] for name in found}
        parts = [versions, "", scores(found), "", "## Not supported", "", *shortcomings(cases)]
        replace_part(arguments.write, "conformance", "\n".join(parts))


if __name__ == "__main__":
    main()
