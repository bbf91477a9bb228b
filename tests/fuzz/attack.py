"""One number after the other: the case is laid out, and every reader is given it under watch."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

from tests.fuzz.cases import Case, Workspace, make_case
from tests.fuzz.readers import READERS
from tests.fuzz.seeds import Seed
from tests.fuzz.watch import Failure, Watch, watched

WATCH = Watch()


@dataclasses.dataclass
class Tally:
    """What came of many cases.

    Attributes:
        inputs: How many there were.
        reads: For each reader, how many it was given.
        refused: For each reader, how many it refused with an error of ours.
        done: How often each mutation was made.
        failures: What must not happen: the case's number, the mutations, and what happened.
    """

    inputs: int = 0
    reads: Counter[str] = dataclasses.field(default_factory=Counter)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)
    done: Counter[str] = dataclasses.field(default_factory=Counter)
    failures: list[tuple[int, tuple[str, ...], Failure]] = dataclasses.field(default_factory=list)


def attack(
    numbers: Iterable[int],
    seeds: Sequence[Seed],
    folder: Path,
    series: int = 0,
    sparsely: Mapping[str, int] | None = None,
) -> Tally:
    """Give the cases of these numbers to every reader; to some of them one in so many."""
    WATCH.install()
    tally = Tally()
    workspace = Workspace(folder).make(seeds)
    each = sparsely or {}
    for number in numbers:
        case = make_case(number, seeds, workspace, series)
        tally.inputs += 1
        tally.done.update(case.done or ("nothing",))
        for name, reader in READERS.items():
            if number % each.get(name, 1):
                continue
            tally.reads[name] += 1
            failure, refused = _attack_one(name, reader, case, workspace)
            tally.refused[name] += refused
            if failure is not None:
                tally.failures.append((number, case.done, failure))
        if not workspace.outside_is_untouched():
            tally.failures.append((number, case.done, Failure("all", "wrote outside of the folder", "")))
            workspace.make(seeds)
    return tally


def _attack_one(name: str, reader: object, case: Case, workspace: Workspace) -> tuple[Failure | None, bool]:
    draw = Random(f"{name}/{case.number}")
    folders = (workspace.inside, workspace.results, workspace.root / "seed")
    # The child process that runs a graph gets large weights through a temporary file.
    usual, tempfile.tempdir = tempfile.tempdir, str(workspace.results)
    # torch creates its cache folder when a model runs.
    cache = patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(workspace.results / "torch"))
    try:
        with cache:
            return watched(name, lambda: reader(case, workspace, draw), WATCH, folders, case.size)  # type: ignore[operator]
    finally:
        tempfile.tempdir = usual
