"""500 damaged files for every reader: each gives a result or an error of ours, and has no other effect.

`make fuzz` runs 100,000 of another series. A number that fails here is laid out and run alone by
``python -m tests.fuzz.run --series 1 --case NUMBER``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelexport.analysis.validation.validator import validate
from tests.conftest import Exporter
from tests.fuzz import attack as attacks
from tests.fuzz.attack import attack
from tests.fuzz.cases import Case, Workspace, make_case
from tests.fuzz.readers import READERS, SPARSELY
from tests.fuzz.seeds import MODELS, Seed, make_seeds
from tests.fuzz.watch import Watch, watched

INPUTS = 500
PARTS = 1
SERIES = 1
# Found by `make fuzz`: subgraphs and text nested deep, a weight tied to one that nobody holds, a weight that is text,
# text that does not fit its shape, paths of many thousand modules, an input made in a subgraph.
ONCE_BROKE_ONE = (5713, 9446, 11061, 12414, 15991, 18984, 19963)
# These say nothing in our own stores.
_NOT_OURS = ("torch metadata", "scoped names")

pytestmark = pytest.mark.xdist_group("shared_block")


@pytest.fixture(scope="module")
def seeds(exported: Exporter) -> list[Seed]:
    return make_seeds(*(exported(name).path for name in MODELS))


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """onnx_ir logs what is odd about a model; here all of them are."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_command_returns_a_result_or_an_error_of_ours(part: int, seeds: list[Seed], tmp_path: Path) -> None:
    numbers = range(part * INPUTS // PARTS, (part + 1) * INPUTS // PARTS)
    tally = attack(numbers, seeds, tmp_path, SERIES, SPARSELY)
    assert tally.failures == []
    assert tally.inputs == INPUTS // PARTS
    # What is given to readers is neither harmless nor hopeless.
    for name in ("load", "read_model", "analyze", "validate", "compare"):
        assert 0.05 < tally.refused[name] / tally.reads[name] < 0.95, name


@pytest.mark.regression
def test_inputs_that_once_broke_a_command(seeds: list[Seed], tmp_path: Path) -> None:
    assert attack(ONCE_BROKE_ONE, seeds, tmp_path, series=0).failures == []


def test_seeds_are_good(seeds: list[Seed], tmp_path: Path) -> None:
    """What is mutated is read before by every reader, and valid where it has a hierarchy."""
    workspace = Workspace(tmp_path).make(seeds)
    for seed in seeds:
        workspace.clear()
        seed.save(workspace.inside)
        case = Case(0, workspace.inside / "model.onnx", seed, (), 10**6)
        for name, reader in READERS.items():
            failure, refused = attacks._attack_one(name, reader, case, workspace)
            assert failure is None
            hopeless = (
                (seed.sidecar is None and name == "retag from")
                or (seed.name in _NOT_OURS and name in ("tree", "extract", "extract files", "repair"))
                or name in ("select", "analyze", "inputs")  # by patterns that may pick nothing, of a damaged file
            )
            assert hopeless or not refused, (seed.name, name)
        if seed.sidecar is not None:
            assert validate(case.path).is_valid


def test_same_number_is_the_same_case(seeds: list[Seed], tmp_path: Path) -> None:
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        workspace = Workspace(folder).make(seeds)
        case = make_case(7, seeds, workspace, SERIES)
        contents.append((case.done, case.path.read_bytes()))
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("deed", "problem"),
    [
        (lambda outside: str(1 / 0), "ZeroDivisionError"),
        (lambda outside: (outside / "canary.txt").read_text(), "opened or ran"),
        (lambda outside: (outside.parent / "new").write_text("x") and "", "opened or ran"),
        (lambda outside: (outside / "canary.txt").rename(outside / "moved").name, "opened or ran"),
        (lambda outside: __import__("os").system("true") and "", "opened or ran"),
        (lambda outside: str(len(bytearray(2**30))), "over 512 MB"),
        (lambda outside: "CANARY-7f3a-do-not-read-me-", "told what is outside"),
        (lambda outside: next(n for n in iter(int, 1) if n), "over 10 s"),
    ],
    ids=["raises", "reads", "writes", "renames", "runs", "memory", "tells", "hangs"],
)
def test_watch_sees_what_must_not_happen(
    deed: object, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.watch.CPU_SECONDS", 10 if "512" in problem else 0.5)
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "canary.txt").write_text("x")
    attacks.WATCH.install()
    watch: Watch = attacks.WATCH
    outside = tmp_path / "outside"
    failure, _ = watched("deed", lambda: deed(outside), watch, (tmp_path / "inside",), 100)  # type: ignore[operator]
    assert failure is not None
    assert problem.replace("10 s", "0.5 s") in failure.problem
    assert watched("nothing", lambda: "", watch, (tmp_path / "inside",), 100) == (None, False)
