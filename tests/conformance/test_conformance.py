"""Every known way to lose the owners of nodes, with both exporters and every strategy: the owners are right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

import modelexport
from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.verification.contamination_by_value import check_owners_by_value
from tests.conformance import criteria
from tests.conformance.bench import Bench, Column, export
from tests.conformance.case import CRITERIA, FILES, all_cases
from tests.support.breaking import random_moves, suspects_when_moved

pytestmark = pytest.mark.integration

_LEAST_COMPARED = 1


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("conformance"))


@pytest.fixture
def column(bench: Bench, name: str, strategy: str, file: str) -> Column:
    return bench.column(name, all_cases()[name], strategy, file)


def every_node_is_owned(column: Column) -> None:
    assert criteria.unowned(column) == []
    assert {identity for identity, _ in column.file.nodes} == set(column.claims)


def no_node_is_owned_by_a_module_that_did_not_compute_it(column: Column) -> None:
    verdict = criteria.verdict(column)
    assert verdict.contaminated == ()
    assert verdict.judged >= column.truth.case.judged


def nodes_name_all_calls_that_computed_them(column: Column) -> None:
    assert criteria.unmet(column) == []


def calls_are_those_of_the_model(column: Column) -> None:
    case, document = column.truth.case, column.document
    assert document is not None
    made: dict[str, list[str]] = {}
    for call in document.calls:
        if call.parent is not None:
            made.setdefault(call.parent, []).append(call.id)
    if case.calls is None:
        assert [call.id for call in document.calls] == list(column.truth.calls[0])
    else:
        assert made == {caller: list(calls) for caller, calls in case.calls.items()}
    good, total = criteria.told_apart(column)
    assert good == total


def no_call_is_merged_into_another(column: Column) -> None:
    assert criteria.lost(column) == set()
    assert criteria.wrongly_removed(column) == set()


def boundary_tensors_have_the_values_of_the_inputs_and_outputs_in_pytorch(column: Column) -> None:
    wrong, compared = criteria.wrong_boundaries(column)
    assert wrong == []
    assert compared >= _LEAST_COMPARED or not column.by_call


CHECKS: dict[str, Callable[[Column], None]] = {
    "owned": every_node_is_owned,
    "values": no_node_is_owned_by_a_module_that_did_not_compute_it,
    "contributors": nodes_name_all_calls_that_computed_them,
    "calls": calls_are_those_of_the_model,
    "named": no_call_is_merged_into_another,
    "boundaries": boundary_tensors_have_the_values_of_the_inputs_and_outputs_in_pytorch,
}


def columns(*names: str) -> list[object]:
    """Each pair of strategy and file of each of these cases."""
    return [
        pytest.param(name, strategy, file, id=f"{name}-{strategy}-{file}", marks=pytest.mark.xdist_group(name))
        for name in names
        for strategy, file in all_cases()[name].columns()
    ]


@pytest.mark.parametrize(("name", "strategy", "file"), columns(*all_cases()))
def test_column_meets_every_criterion_except_those_that_its_case_says_it_cannot(
    column: Column, strategy: str, file: str
) -> None:
    assert tuple(CHECKS) == CRITERIA
    for criterion, check in CHECKS.items():
        if column.truth.case.shortcoming(strategy, file, criterion) is None:
            check(column)
        else:
            with pytest.raises(AssertionError):
                check(column)


_WITH_SUBGRAPHS = [name for name in all_cases() if name.partition("-")[0] in ("cond_bodies", "loop_bodies")]


@pytest.mark.parametrize(("name", "strategy", "file"), columns(*_WITH_SUBGRAPHS))
def test_wrong_owners_in_subgraphs_are_found_by_value_and_right_ones_are_not_reported(column: Column) -> None:
    args, kwargs = column.truth.inputs[0]
    check = check_owners_by_value(ValidatedFile(column.path), copy.deepcopy(column.truth.model), kwargs or args)
    assert check.suspects() == []
    moves = random_moves(check.document, 40, seed=4)
    found = [node for node, owner in moves if node in suspects_when_moved(check, node, owner)]
    assert len(found) / len(moves) >= 0.9, f"{len(found)} of {len(moves)}"


_STATED = [name for name, case in all_cases().items() if case.calls is not None]


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in _STATED])
def test_case_states_the_calls_of_the_eager_run(bench: Bench, name: str) -> None:
    case = all_cases()[name]
    stated = {"", *(call for calls in (case.calls or {}).values() for call in calls)}
    seen = {call for calls in bench.truth(name, case).calls for call in calls}
    if case.loops:
        truth = bench.truth(name, case)
        assert {truth.module_of(call) for call in seen} == {truth.module_of(call) for call in stated}
    else:
        assert seen == stated


_REFUSED = [
    pytest.param(name, file, id=f"{name}-{file}", marks=pytest.mark.xdist_group(name))
    for name, case in all_cases().items()
    for file in FILES
    if case.refusal(file) is not None and not file.endswith("-raw")
]


@pytest.mark.parametrize(("name", "file"), _REFUSED)
def test_case_states_the_exporters_that_refuse_the_model(tmp_path: Path, name: str, file: str) -> None:
    case = all_cases()[name]
    model, (inputs, *_) = case.example()
    with pytest.raises(modelexport.StrategyIncompatibleError):
        export(model, inputs, tmp_path / "refused.onnx", case, file)
    assert list(tmp_path.iterdir()) == []
