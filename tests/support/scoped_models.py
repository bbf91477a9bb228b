"""Small ONNX models made without torch, whose nodes name their modules as torch's exporter does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper


def scoped(node: onnx.NodeProto, path: str, class_name: str, around: Sequence[tuple[str, str]] = ()) -> onnx.NodeProto:
    """Name the module of a node, and those around it, the outermost first."""
    scopes = [("", "models.Net"), *around, *([(path, class_name)] if path else [])]
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str([name for name, _ in scopes] + ["node"]))
    node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str([kind for _, kind in scopes] + ["aten.op"]))
    return node


def layer(number: int, *, ops: Sequence[str] = ("MatMul", "Relu"), **attributes: Any) -> list[onnx.NodeProto]:
    """The nodes of a layer: the first consumes the output of the layer before, the last has the attributes."""
    nodes, value = [], "x" if not number else f"layer_{number - 1}"
    for position, op in enumerate(ops):
        last = position == len(ops) - 1
        output = f"layer_{number}" if last else f"layer_{number}_{position}"
        inputs = [value, "weight"] if op in ("MatMul", "Add") else [value]
        node = helper.make_node(op, inputs, [output], **(attributes if last else {}))
        nodes.append(scoped(node, f"layers.{number}", "models.Layer"))
        value = output
    return nodes


def stack(layers: Sequence[list[onnx.NodeProto]], shape: Sequence[int | str] = (2, 4)) -> onnx.ModelProto:
    """A model of layers, with the types of all tensors."""
    nodes = [node for each in layers for node in each]
    last = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        [helper.make_tensor("weight", TensorProto.FLOAT, [4, 4], [float(number) for number in range(16)])],
        value_info=[helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, shape) for n in nodes[:-1]],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def saved(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model."""
    onnx.save_model(model, path)
    return path
