"""The criteria find claims that are wrong on purpose: other owners, missing contributors, merged calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.conformance import criteria
from tests.conformance.bench import Bench, Claim, Column
from tests.conformance.case import all_cases
from tests.conformance.raw import read_dynamo, read_torchscript
from tests.support.subgraphs import expose_subgraphs, walk_nodes

pytestmark = [pytest.mark.sanity, pytest.mark.xdist_group("conformance_criteria")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("criteria"))


def _column(bench: Bench, name: str, strategy: str = "fx", file: str = "dynamo") -> Column:
    return bench.column(name, all_cases()[name], strategy, file)


def _with(column: Column, claims: Mapping[str, Claim]) -> Column:
    return Column(column.truth, column.file, column.kind, {**column.claims, **claims}, by_call=column.by_call)


def test_owner_moved_to_another_call_is_contaminated(bench: Bench) -> None:
    column = _column(bench, "reused_module")
    moved = {identity: Claim("out") for identity, claim in column.claims.items() if claim.owner == "blk@1"}
    assert moved
    assert {case.node for case in criteria.contaminated(_with(column, moved))} == set(moved)


def test_owner_moved_to_another_call_of_the_same_module_is_contaminated(bench: Bench) -> None:
    column = _column(bench, "reused_module")
    moved = {identity: Claim("blk") for identity, claim in column.claims.items() if claim.owner == "blk@1"}
    assert {case.node for case in criteria.contaminated(_with(column, moved))} == set(moved)


def test_owner_moved_inside_a_subgraph_is_contaminated(bench: Bench) -> None:
    for name, owner in (("cond_bodies", "no.lin"), ("loop_bodies-scan", "cell.lin"), ("loop_bodies-while", "cell.lin")):
        if not all_cases()[name].applies("dynamo"):
            continue
        column = _column(bench, name)
        moved = {identity: Claim("") for identity, claim in column.claims.items() if claim.owner == owner}
        assert moved, name
        assert set(moved) & {case.node for case in criteria.contaminated(_with(column, moved))}, name


def test_dropped_contributor_is_unmet(bench: Bench) -> None:
    column = _column(bench, "conv_batchnorm-2d")
    alone = {i: Claim(c.owner, (), c.kind, c.label) for i, c in column.claims.items() if c.contributors}
    assert alone
    assert criteria.unmet(column) == []
    assert len(criteria.unmet(_with(column, alone))) == 1
    assert criteria.lost(_with(column, alone)) == {"conv"}


def test_additional_contributor_is_unmet(bench: Bench) -> None:
    column = _column(bench, "conv_batchnorm-2d")
    more = {i: Claim(c.owner, (*c.contributors, "act"), c.kind) for i, c in column.claims.items() if c.owner == "norm"}
    assert len(criteria.unmet(_with(column, more))) == 1


def test_calls_merged_into_their_caller_are_lost(bench: Bench) -> None:
    column = _column(bench, "gradient_blocks-no_grad")
    lumped = {i: Claim("") for i, claim in column.claims.items() if (claim.owner or "").startswith("frozen")}
    assert {"frozen.0", "frozen.1", "frozen.0.lin", "frozen.0@1"} <= criteria.lost(_with(column, lumped))


def test_calls_with_one_label_are_not_distinguished(bench: Bench) -> None:
    column = _column(bench, "reused_module")
    same = {i: Claim(c.owner, label=column.truth.module_of(c.owner or "")) for i, c in column.claims.items()}
    good, total = criteria.told_apart(column)
    assert good == total > 0
    assert criteria.told_apart(_with(column, same)) == (0, total)


def test_missing_claim_is_unowned(bench: Bench) -> None:
    column = _column(bench, "reused_module")
    first, second, *_ = column.claims
    broken = _with(column, {first: Claim(None), second: Claim("nobody")})
    assert criteria.unowned(broken) == [first, second]


def test_torch_metadata_is_read_as_torch_writes_it(bench: Bench) -> None:
    truth = bench.truth("twin_name", all_cases()["twin_name"])
    named = {"/l/lin/Gemm": "l.lin", "/Add": "", "/l_1/Tanh": "l_1", "/l_7/lin/Gemm": "l.lin", "Constant_3": None}
    for name, module in named.items():
        assert read_torchscript(helper.make_node("Add", [], ["y"], name=name), truth).owner == module
    node = helper.make_node("Add", [], ["y"])
    assert read_dynamo(node, truth).owner is None
    node.metadata_props.append(
        onnx.StringStringEntryProto(key="pkg.torch.onnx.name_scopes", value="['', 'l', 'l.lin', 'linear']")
    )
    assert read_dynamo(node, truth).owner == "l.lin"


def test_tensors_of_both_branches_are_returned(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(f"{op}_result", TensorProto.FLOAT, None)
        inner = [helper.make_node(op, ["x"], [f"{op}_inner"]), helper.make_node("Neg", [f"{op}_inner"], [result.name])]
        return helper.make_graph(inner, op, [], [result])

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    test = helper.make_tensor_value_info("test", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    node = helper.make_node("If", ["test"], ["y"], then_branch=branch("Sin"), else_branch=branch("Cos"))
    model = helper.make_model(
        helper.make_graph([node], "g", [test, x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    inside = [identity for identity, _ in walk_nodes(model) if "/" in identity]
    expose_subgraphs(model)
    onnx.checker.check_model(model)
    assert set(inside) <= set(model.graph.node[0].output)
