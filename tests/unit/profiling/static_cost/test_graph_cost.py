"""The cost of the nodes of a graph: weights, memory traffic, subgraphs, functions, and what cannot be counted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelexport.graph import proto_nodes_with_ids
from modelexport.profiling.static_cost.graph_cost import (
    NO_FORMULA,
    NO_SHAPE,
    TOO_MANY_FUNCTIONS,
    GraphCost,
    count_uncounted,
    graph_cost,
)
from modelexport.profiling.static_cost.tensor_shapes import Axes


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or None)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def cost(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    *,
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    axes: dict[str, int] | None = None,
) -> GraphCost:
    graph = helper.make_graph(nodes, "graph", inputs, [onnx.ValueInfoProto(name="y")], weights)
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    sizes = Axes(axes or {})
    sizes.check(model.graph)
    return graph_cost(model, proto_nodes_with_ids(model), sizes)


def operations(found: GraphCost) -> dict[str, int]:
    return {node.id: node.work.operations for node in found.nodes}


def matmul(output: str = "y", right: str = "w") -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", right], [output])


def test_shapes_that_the_file_does_not_declare_are_inferred() -> None:
    relu = helper.make_node("Relu", ["h"], ["y"])
    found = cost([matmul("h"), relu], [floats("x", "batch", 4)], weights=[weight("w", 4, 5)], axes={"batch": 3})
    assert operations(found) == {"h": 2 * 3 * 4 * 5, "y": 3 * 5}
    product = found.nodes[0]
    assert product.output_bytes == 3 * 5 * 4
    assert product.traffic == 4 * (3 * 4 + 4 * 5 + 3 * 5)
    assert product.weights == {"w": (20, 80)}
    assert found.notes == ()


def test_views_move_no_memory_and_a_gather_reads_only_what_it_returns() -> None:
    indices = numpy_helper.from_array(np.array([1, 2]), "indices")
    gather = helper.make_node("Gather", ["table", "indices"], ["rows"])
    shape = numpy_helper.from_array(np.array([8]), "shape")
    reshape = helper.make_node("Reshape", ["rows", "shape"], ["y"])
    found = cost([gather, reshape], [], weights=[weight("table", 1000, 4), indices, shape])
    rows, view = found.nodes
    assert (rows.traffic, rows.output_bytes) == (2 * 2 * 4 * 4 + 2 * 8, 2 * 4 * 4)
    assert (view.traffic, view.output_bytes) == (0, 0)
    # Shapes and indices are not parameters.
    assert (rows.weights, view.weights) == ({"table": (4000, 16000)}, {})


def test_operator_without_formula_and_unknown_shape_are_listed() -> None:
    nodes = [
        helper.make_node("Foreign", ["x"], ["f"], domain="some.where"),
        helper.make_node("Relu", ["f"], ["r"]),
        helper.make_node("TopK", ["x", "k"], ["y", "i"]),
    ]
    found = cost(nodes, [floats("x", 2, 3)], weights=[numpy_helper.from_array(np.array([1]), "k")])
    assert count_uncounted(found.nodes) == {
        ("some.where::Foreign", NO_FORMULA): 1,
        ("Relu", NO_SHAPE): 1,
        ("TopK", NO_FORMULA): 1,
    }


def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])


def test_of_an_if_the_branch_with_the_most_operations_counts() -> None:
    small = branch("small", helper.make_node("Relu", ["x"], ["s"]))
    large = branch("large", matmul("m"), helper.make_node("Relu", ["m"], ["l"]))
    node = helper.make_node("If", ["c"], ["y"], then_branch=small, else_branch=large)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    found = cost([node], [floats("x", 3, 4), condition], weights=[weight("w", 4, 4)])
    assert operations(found) == {"y": 0, "y/else_branch/m": 2 * 3 * 4 * 4, "y/else_branch/l": 12}
    assert found.nodes[1].weights == {"w": (16, 64)}
    assert any("branch with the most operations" in note for note in found.notes)


def loop(trips: onnx.TensorProto | None) -> GraphCost:
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Identity", ["c"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, []), floats("r", 3, 4)],
    )
    node = helper.make_node("Loop", ["trips", ""], ["y"], body=body)
    inputs = [floats("x", 3, 4)]
    if trips is None:
        inputs.append(helper.make_tensor_value_info("trips", TensorProto.INT64, []))
    return cost([node], inputs, weights=[] if trips is None else [trips])


def test_loop_counts_as_often_as_its_constant_trip_count_says() -> None:
    found = loop(numpy_helper.from_array(np.array(5), "trips"))
    assert operations(found)["y/body/r"] == 5 * 12
    assert found.nodes[1].traffic == 5 * 2 * 12 * 4
    assert found.notes == ()


def test_loop_of_unknown_length_counts_once_and_says_so() -> None:
    found = loop(None)
    assert operations(found)["y/body/r"] == 12
    assert found.notes == ("Loop: the number of iterations is not known; one counts",)


def test_scan_counts_once_for_each_element_of_the_sequence() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "item"], ["next"]), helper.make_node("Identity", ["next"], ["out"])],
        "body",
        [floats("state", 4), floats("item", 4)],
        [floats("next", 4), floats("out", 4)],
    )
    node = helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    found = cost([node], [floats("start", 4), floats("x", 7, 4)])
    assert operations(found)["last/body/next"] == 7 * 4


def function(name: str, nodes: Sequence[onnx.NodeProto], **options: Any) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a", "b"], ["z"], nodes, opsets, **options)


def test_call_of_a_function_costs_what_its_body_costs_with_the_shapes_of_the_call() -> None:
    inner = function("Inner", [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Relu", ["p"], ["z"])])
    outer = function("Outer", [helper.make_node("Inner", ["a", "b"], ["q"], domain="local"), gemm_with_reference()])
    calls = [
        helper.make_node("Outer", ["x", "w"], ["h"], domain="local", side=1),
        helper.make_node("Outer", ["h", "v"], ["y"], domain="local", side=1),
    ]
    outer.attribute.append("side")
    weights = [weight("w", 4, 5), weight("v", 4, 6)]
    found = cost(calls, [floats("x", 3, 4)], weights=weights, functions=[inner, outer])
    assert operations(found) == {
        "h": (2 * 3 * 4 * 5 + 15) + 2 * 3 * 5 * 4,
        "y": (2 * 3 * 4 * 6 + 18) + 2 * 3 * 6 * 4,
    }
    assert [node.weights for node in found.nodes] == [{"w": (20, 80)}, {"v": (24, 96)}]


def gemm_with_reference() -> onnx.NodeProto:
    """A Gemm whose `transB` is the attribute `side` of the function."""
    node = helper.make_node("Gemm", ["q", "b"], ["z"])
    node.attribute.append(
        onnx.AttributeProto(name="transB", ref_attr_name="side", type=onnx.AttributeProto.AttributeType.INT)
    )
    return node


def chain(length: int, calls: int) -> list[onnx.FunctionProto]:
    """Functions of which each calls the next; the last one has an operator without a formula."""
    found = [function("F0", [helper.make_node("Foreign", ["a"], ["z"], domain="some.where")])]
    found[0].opset_import.append(helper.make_opsetid("some.where", 1))
    for number in range(1, length):
        names = ["a", *(f"t{call}" for call in range(calls - 1)), "z"]
        nodes = [
            helper.make_node(f"F{number - 1}", [before, "b"], [after], domain="local")
            for before, after in itertools.pairwise(names)
        ]
        found.append(function(f"F{number}", nodes))
    return found


def test_nodes_in_functions_count_once_for_each_call() -> None:
    call = helper.make_node("F5", ["x", "x"], ["y"], domain="local")
    found = cost([call], [floats("x", 3, 4)], functions=chain(6, calls=2))
    assert count_uncounted(found.nodes) == {("some.where::Foreign", NO_FORMULA): 2**5}


def test_functions_nested_too_deeply_are_listed() -> None:
    functions = chain(70, calls=1)
    call = helper.make_node("F69", ["x", "x"], ["y"], domain="local")
    found = cost([call], [floats("x", 3, 4)], functions=functions)
    ((_, reason),) = count_uncounted(found.nodes)
    assert reason == TOO_MANY_FUNCTIONS
