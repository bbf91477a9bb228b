"""Small ONNX models built by hand."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def node(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    domain = "" if op in ("Relu", "Neg", "Add", "If", "Constant", "LeakyRelu", "Identity") else "local"
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


def subgraph(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output)])


def proto(nodes: list[onnx.NodeProto], *, outputs: tuple[str, ...] = ("y",), **options: object) -> onnx.ModelProto:
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [condition, value("x")], [value(name) for name in outputs], weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **options)


def saved_and_loaded(model: ir.Model, folder: Path) -> ir.Model:
    ir.save(model, folder / "model.onnx")
    return ir.load(folder / "model.onnx")
