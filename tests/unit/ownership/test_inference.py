"""Inference of owners from data flow, one test for each kind of evidence."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from modelexport.errors import InputError
from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import ROOT_CALL, CallId, CallTree, ModuleCall
from modelexport.hierarchy.confidence import (
    AGREEING_NEIGHBOURS,
    COMMON_CALLER,
    NO_EVIDENCE,
    ONE_SIDE,
    recorded_by_exporter,
)
from modelexport.hierarchy.module_patterns import boundary_paths
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree
from modelexport.ownership import InferencePolicy, add_contexts, infer_missing

A, B, INNER = CallId("a"), CallId("b"), CallId("a.inner")
CALLS = CallTree(
    {
        ROOT_CALL: ModuleCall("", 0, None),
        A: ModuleCall("a", 0, ROOT_CALL),
        INNER: ModuleCall("a.inner", 0, A),
        B: ModuleCall("b", 0, ROOT_CALL),
    }
)


class Chain:
    """A graph written node by node, each with its recorded call or None."""

    def __init__(self) -> None:
        self.given = ir.Value(name="x")
        self.nodes: list[ir.Node] = []
        self.known: dict[ir.Node, Attribution] = {}

    def add(self, call: CallId | None, *inputs: ir.Value, attributes: list[ir.Attr] | None = None) -> ir.Value:
        node = ir.Node("", "Op", inputs, attributes or [], outputs=[ir.Value(name=f"v{len(self.nodes)}")])
        self.nodes.append(node)
        if call is not None:
            self.known[node] = recorded_by_exporter(call)
        return node.outputs[0]

    def resolve(self, *outputs: ir.Value, policy: InferencePolicy | None = None) -> dict[ir.Node, Attribution]:
        model = ir.Model(ir.Graph([self.given], outputs, nodes=self.nodes), ir_version=10)
        return infer_missing(model, self.known, CALLS, policy or InferencePolicy())

    def found_for(self, value: ir.Value, *outputs: ir.Value, policy: InferencePolicy | None = None) -> Attribution:
        producer = value.producer()
        assert producer is not None
        return self.resolve(*outputs, policy=policy)[producer]


def test_node_between_nodes_of_one_call_belongs_to_that_call() -> None:
    chain = Chain()
    helper = chain.add(None, chain.add(None, chain.add(A, chain.given)))
    found = chain.found_for(helper, chain.add(A, helper))
    assert (found.owner, found.kind, found.confidence) == (A, Kind.INFERRED, AGREEING_NEIGHBOURS)


def test_chain_between_two_calls_belongs_to_their_caller_and_names_both() -> None:
    chain = Chain()
    first = chain.add(None, chain.add(INNER, chain.given))
    second = chain.add(None, first)
    resolved = chain.resolve(chain.add(B, second))
    for helper in (first, second):
        found = resolved[helper.producer()]
        assert (found.owner, found.contributors, found.confidence) == (ROOT_CALL, (INNER, B), COMMON_CALLER)


def test_constant_that_one_call_consumes_belongs_to_that_call() -> None:
    chain = Chain()
    constant = chain.add(None)
    found = chain.found_for(constant, chain.add(B, constant))
    assert (found.owner, found.confidence) == (B, AGREEING_NEIGHBOURS)


def test_value_that_several_calls_consume_lists_all_of_them() -> None:
    chain = Chain()
    hoisted = chain.add(None, chain.given)
    found = chain.found_for(hoisted, chain.add(A, hoisted), chain.add(B, hoisted))
    assert (found.owner, found.contributors) == (ROOT_CALL, (A, B))


def test_confidence_is_lower_if_only_producers_or_only_consumers_are_known() -> None:
    chain = Chain()
    last = chain.add(None, chain.add(A, chain.given))
    assert chain.found_for(last, last).confidence == ONE_SIDE


def test_node_without_evidence_belongs_to_the_root() -> None:
    chain = Chain()
    alone = chain.add(None, chain.given)
    found = chain.found_for(alone, alone)
    assert (found.owner, found.confidence) == (ROOT_CALL, NO_EVIDENCE)


def test_node_in_a_subgraph_belongs_to_the_owning_node_whatever_it_consumes_from_outside() -> None:
    chain = Chain()
    outer = chain.add(B, chain.given)
    inside = ir.Node("", "Op", [outer], outputs=[ir.Value(name="inside")])
    body = ir.Graph([], inside.outputs, nodes=[inside])
    holder = chain.add(A, chain.given, attributes=[ir.AttrGraph("then_branch", body)])
    assert chain.resolve(holder)[inside].owner == A


def test_owner_of_an_owning_node_is_inferred_from_the_nodes_of_its_subgraph() -> None:
    chain = Chain()
    inside = ir.Node("", "Op", [chain.given], outputs=[ir.Value(name="inside")])
    chain.known[inside] = recorded_by_exporter(INNER)
    body = ir.Graph([], inside.outputs, nodes=[inside])
    holder = chain.add(None, chain.given, attributes=[ir.AttrGraph("then_branch", body)])
    assert chain.found_for(holder, chain.add(A, holder)).owner == A


def test_unrecorded_nodes_belong_to_the_root_without_advanced_resolution() -> None:
    chain = Chain()
    helper = chain.add(None, chain.add(A, chain.given))
    found = chain.found_for(helper, chain.add(A, helper), policy=InferencePolicy(advanced=False))
    assert (found.owner, found.kind, found.confidence) == (ROOT_CALL, Kind.INFERRED, NO_EVIDENCE)


def test_evidence_from_one_side_does_not_cross_a_boundary() -> None:
    owners = []
    for boundaries in ({}, {"a"}):
        chain = Chain()
        last = chain.add(None, chain.add(INNER, chain.given))
        policy = InferencePolicy(boundaries=frozenset(boundaries))
        owners.append(chain.found_for(last, last, policy=policy).owner)
    assert owners == [INNER, ROOT_CALL]


def test_node_with_all_its_evidence_inside_a_boundary_belongs_to_the_module() -> None:
    chain = Chain()
    helper = chain.add(None, chain.add(INNER, chain.given))
    found = chain.found_for(helper, chain.add(INNER, helper), policy=InferencePolicy(boundaries=frozenset({"a"})))
    assert found.owner == INNER


def test_calls_inside_a_boundary_are_not_evidence_for_nodes_outside() -> None:
    chain = Chain()
    helper = chain.add(None, chain.add(INNER, chain.given))
    policy = InferencePolicy(boundaries=frozenset({"a"}))
    found = chain.found_for(helper, chain.add(B, helper), policy=policy)
    assert (found.owner, found.contributors) == (ROOT_CALL, (B,))


def test_confidence_in_a_function_is_at_most_that_of_the_nodes_that_call_it() -> None:
    x = ir.Value(name="x")
    made, body = ir.Node("", "Op", [x], outputs=[ir.Value(name="y")]), ir.Value(name="i")
    inner = ir.Node("", "Op", [body], outputs=[ir.Value(name="o")])
    function = ir.Function("local", "F", graph=ir.Graph([body], inner.outputs, nodes=[inner]), attributes=[])
    call = ir.Node("local", "F", made.outputs, outputs=[ir.Value(name="z")])
    model = ir.Model(ir.Graph([x], call.outputs, nodes=[made, call]), ir_version=10, functions=[function])
    found = infer_missing(model, {made: recorded_by_exporter(A)}, CALLS)
    assert (found[inner].owner, found[inner].kind, found[inner].confidence) == (A, Kind.INFERRED, ONE_SIDE)
    known = {made: recorded_by_exporter(A), call: recorded_by_exporter(B)}
    assert infer_missing(model, known, CALLS)[inner].kind is Kind.EXACT


def test_function_belongs_also_to_calls_that_use_it_through_another_function() -> None:
    x = ir.Value(name="x")
    functions = []
    for name, calls_on in (("Inner", None), ("Outer", "Inner")):
        given = ir.Value(name="i")
        node = ir.Node("local" if calls_on else "", calls_on or "Op", [given], outputs=[ir.Value(name="o")])
        functions.append(ir.Function("local", name, graph=ir.Graph([given], node.outputs, nodes=[node]), attributes=[]))
    direct = ir.Node("local", "Inner", [x], outputs=[ir.Value(name="y")])
    through = ir.Node("local", "Outer", direct.outputs, outputs=[ir.Value(name="z")])
    graph = ir.Graph([x], through.outputs, nodes=[direct, through])
    model = ir.Model(graph, ir_version=10, functions=functions)
    found = infer_missing(model, {direct: recorded_by_exporter(A), through: recorded_by_exporter(B)}, CALLS)
    inner = found[next(iter(functions[0]))]
    assert (inner.owner, inner.kind, inner.contributors) == (ROOT_CALL, Kind.MERGED, (A, B))


def test_residual_add_keeps_its_owner_and_has_its_producers_as_context() -> None:
    chain = Chain()
    left, right = chain.add(A, chain.given), chain.add(B, chain.given)
    total = chain.add(ROOT_CALL, left, right)
    model = ir.Model(ir.Graph([chain.given], [total], nodes=chain.nodes), ir_version=10)
    joined = add_contexts(model, chain.known)
    found = joined[total.producer()]
    assert (found.owner, found.kind, found.context, found.contributors) == (ROOT_CALL, Kind.EXACT, (A, B), ())
    assert joined[left.producer()].context == ()


# --- boundaries that callers name ------------------------------------------------------------------------------

TREE = ModuleTree(
    {
        "": ModuleInfo("", "Net", "pkg.Net"),
        "a": ModuleInfo("a", "Block", "pkg.Block", aliases=("also",)),
        "a.inner": ModuleInfo("a.inner", "Linear", "torch.nn.modules.linear.Linear"),
        "b": ModuleInfo("b", "Block", "pkg.Block"),
    }
)


@pytest.mark.parametrize(
    ("boundaries", "paths"),
    [
        (["a"], {"a"}),
        (["also"], {"a"}),
        (["a.*"], {"a.inner"}),
        (["class:Block"], {"a", "b"}),
        (["class:pkg.*", "a.inner"], {"", "a", "b", "a.inner"}),
        (lambda module: module.class_name == "Linear", {"a.inner"}),
        ([], set()),
    ],
)
def test_boundaries_are_named_by_path_class_or_function(boundaries: object, paths: set[str]) -> None:
    assert boundary_paths(TREE, boundaries) == paths  # type: ignore[arg-type]


@pytest.mark.parametrize("boundaries", [["c"], ["class:Nothing"], "a", [dict]])
def test_boundary_that_names_no_module_is_refused(boundaries: object) -> None:
    with pytest.raises(InputError):
        boundary_paths(TREE, boundaries)  # type: ignore[arg-type]
