"""Small graphs that crash onnxruntime, keep it busy forever, or ask it for any amount of memory."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

DOUBLE = helper.make_node("Add", ["x", "x"], ["y"])
_IMPORTS = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]


def model(
    *nodes: onnx.NodeProto,
    kind: int = TensorProto.FLOAT,
    functions: Sequence[onnx.FunctionProto] = (),
    shape: Sequence[int | str] = ("n",),
) -> onnx.ModelProto:
    """A graph from ``x`` to ``y``."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=_IMPORTS, functions=list(functions))


def function_chain(depth: int, shape: Sequence[int | str] = ("n",)) -> onnx.ModelProto:
    """Local functions that each call the next: deep enough, they exhaust the stack of onnxruntime."""
    functions = [
        helper.make_function(
            "local",
            f"f{number}",
            ["a"],
            ["b"],
            [
                helper.make_node(f"f{number + 1}", ["a"], ["b"], domain="local")
                if number + 1 < depth
                else helper.make_node("Identity", ["a"], ["b"])
            ],
            _IMPORTS,
        )
        for number in range(depth)
    ]
    return model(helper.make_node("f0", ["x"], ["y"], domain="local"), functions=functions, shape=shape)


def function_bomb(depth: int) -> onnx.ModelProto:
    """Local functions that call the next one twice: few nodes, and more than shape inference can follow."""
    found = function_chain(depth)
    for function in found.functions[:-1]:
        call = function.node[0]
        again = helper.make_node(call.op_type, ["b0"], ["b"], domain="local")
        call.output[0] = "b0"
        function.node.append(again)
    return found


def endless_loop(shape: Sequence[int | str] = ("n",)) -> onnx.ModelProto:
    """A Loop without an end."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("w", 1, None)],
    )
    return model(helper.make_node("Loop", ["", "", "x"], ["y"], body=body), shape=shape)


def huge_tensor(shape: Sequence[int | str] = ("n",)) -> onnx.ModelProto:
    """A tensor of 16 GB that the file only names the size of."""
    size = helper.make_node("Constant", [], ["size"], value_ints=[2**32])
    zero = helper.make_node("ConstantOfShape", ["size"], ["zeros"])
    most = helper.make_node("ReduceMax", ["zeros"], ["top"], keepdims=0)
    return model(size, zero, most, helper.make_node("Add", ["x", "top"], ["y"]), shape=shape)
