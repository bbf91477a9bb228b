"""`compare` on random graphs: names and node order do not matter, different computations are never equal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.support.comparing import chain, compared, renamed

# --- any graph ---------------------------------------------------------------------------------------------------

OPERATIONS = ("Add", "Sub", "Mul", "Relu", "Neg")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A model of a few binary and unary nodes, wired at random; many of them are alike."""
    model = chain()
    known = ["x"]
    for number in range(draw(st.integers(1, 9))):
        operation = draw(st.sampled_from(OPERATIONS))
        inputs = [draw(st.sampled_from(known)) for _ in range(2 if operation in OPERATIONS[:3] else 1)]
        model.graph.node.append(helper.make_node(operation, inputs, [f"v{number}"]))
        known.append(f"v{number}")
    model.graph.output[0].name = draw(st.sampled_from(known[1:]))
    return model


def expressions(model: onnx.ModelProto) -> tuple[Counter[str], str]:
    """What each node computes, written out, and what the model gives: another way to tell graphs apart."""
    known = {"x": "x"}
    for node in model.graph.node:
        known[node.output[0]] = f"{node.op_type}({','.join(known[name] for name in node.input)})"
    return Counter(known.values()), known[model.graph.output[0].name]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.randoms(use_true_random=False))
def test_any_graph_is_the_same_under_other_names_and_in_another_order(
    tmp_path: Path, model: onnx.ModelProto, random: Random
) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(model)
    # Any order in which what is read was made before.
    waiting, made, nodes = list(other.graph.node), {"x"}, []
    while waiting:
        node = random.choice([each for each in waiting if made.issuperset(each.input)])
        waiting.remove(node)
        made.add(node.output[0])
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    found = compared(tmp_path, model, renamed(other))
    assert found.same_topology
    assert found.nodes.same == len(model.graph.node)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), graphs())
def test_graphs_with_other_computations_have_another_topology(
    tmp_path: Path, first: onnx.ModelProto, second: onnx.ModelProto
) -> None:
    found = compared(tmp_path, first, second)
    if expressions(first) != expressions(second):
        assert not found.same_topology


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.randoms(use_true_random=False))
def test_one_edge_or_operation_that_differs_is_found(tmp_path: Path, model: onnx.ModelProto, random: Random) -> None:
    other = onnx.ModelProto()
    other.CopyFrom(model)
    position = random.randrange(len(other.graph.node))
    node = other.graph.node[position]
    if random.random() < 0.5:
        node.op_type = random.choice([op for op in OPERATIONS if (op in OPERATIONS[:3]) == (len(node.input) == 2)])
    else:
        known = ["x", *(each.output[0] for each in other.graph.node[:position])]
        node.input[random.randrange(len(node.input))] = random.choice(known)
    found = compared(tmp_path, model, other)
    if expressions(model) != expressions(other):
        assert not found.same_topology
        assert found.nodes.same < len(model.graph.node) or model.graph.output != other.graph.output
    elif model == other:
        assert found.same
