"""Producers, consumers and constants of a graph, in whatever order the file lists the nodes."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.graph.flow_graph import NO_NODE, FlowGraph, read_flow_graph

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])


def _model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    return helper.make_model(helper.make_graph(nodes, "g", [X], [Y], [weight]))


def _edges(flow: FlowGraph) -> set[tuple[str, str, str]]:
    """Every edge as producer, tensor and consumer."""
    return {
        (flow.node_ids[producer] if producer != NO_NODE else "", flow.tensor_names[tensor], flow.node_ids[consumer])
        for tensor, producer in enumerate(flow.producers)
        for consumer in flow.consumers[tensor]
    }


def _constants(flow: FlowGraph) -> set[str]:
    return {flow.tensor_names[tensor] for tensor, constant in enumerate(flow.is_constant) if constant}


NODES = [
    helper.make_node("Neg", ["w"], ["negative"]),
    helper.make_node("Abs", ["negative"], ["folded"]),
    helper.make_node("Add", ["x", "folded"], ["sum"]),
    helper.make_node("Relu", ["sum"], ["y"]),
]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_edges_and_constants_do_not_depend_on_the_order_of_the_nodes(order: tuple[int, ...]) -> None:
    flow = read_flow_graph(_model(*(NODES[position] for position in order)))
    assert _edges(flow) == {
        ("", "w", "negative"),
        ("negative", "negative", "folded"),
        ("folded", "folded", "sum"),
        ("", "x", "sum"),
        ("sum", "sum", "y"),
    }
    assert _constants(flow) == {"w", "negative", "folded"}
    assert {flow.tensor_names[tensor] for tensor in flow.graph_outputs} == {"y"}


@pytest.mark.parametrize("unsorted", [False, True])
def test_subgraph_captures_a_tensor_that_the_outer_graph_lists_later(unsorted: bool) -> None:
    inner = [helper.make_node("Abs", ["late"], ["inner"]), helper.make_node("Neg", ["inner"], ["branch"])]
    branch = helper.make_graph(
        inner[::-1] if unsorted else inner, "b", [], [helper.make_empty_tensor_value_info("branch")]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["late"]),
        helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["condition"], value_int=1),
    ]
    flow = read_flow_graph(_model(*(nodes[::-1] if unsorted else nodes)))
    for name in ("then_branch", "else_branch"):
        assert ("late", "late", f"y/{name}/inner") in _edges(flow)
        assert (f"y/{name}/inner", "inner", f"y/{name}/branch") in _edges(flow)
        assert (f"y/{name}/branch", "branch", "y") in _edges(flow)
    assert ("condition", "condition", "y") in _edges(flow)
    assert _constants(flow) == {"w", "condition"}, "the output of a node with subgraphs is not constant"
    owning = {flow.node_ids[n]: flow.node_ids[o] for n, o in enumerate(flow.owning_nodes) if o != NO_NODE}
    assert set(owning.values()) == {"y"}
    assert len(owning) == 4


def test_a_name_produced_twice_is_consumed_from_the_latest_producer_before() -> None:
    flow = read_flow_graph(
        _model(
            helper.make_node("Relu", ["x"], ["t"]),
            helper.make_node("Abs", ["t"], ["first"]),
            helper.make_node("Neg", ["x"], ["t"]),
            helper.make_node("Abs", ["t"], ["y"]),
        )
    )
    assert ("t", "t", "first") in _edges(flow)
    assert ("t#2", "t", "y") in _edges(flow)


def test_nodes_in_a_cycle_are_read_and_are_not_constant() -> None:
    flow = read_flow_graph(_model(helper.make_node("Add", ["w", "y"], ["a"]), helper.make_node("Neg", ["a"], ["y"])))
    assert {("a", "a", "y"), ("y", "y", "a")} <= _edges(flow)
    assert _constants(flow) == {"w"}
