"""Tagged models of any size, made without torch: a stack of layers, with the stores and the sidecar of an export."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from modelexport.graph.digest import graph_hash
from modelexport.graph.tensors import tensors_with_ids
from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.hierarchy.document_codec import encode_document
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree, TensorInfo, parent_path
from modelexport.hierarchy.tags import TagView
from modelexport.storage.document_builder import build_document
from modelexport.storage.metadata_stores import write_stores
from modelexport.storage.transaction import sidecar_path

WIDTH = 64
# What each layer is made of: path below the layer, class, and the operations that its own forward runs.
LAYER = (
    ("", "models.stack.StackLayer", ("Add", "Add")),
    ("attention", "models.stack.StackAttention", ("Reshape", "Transpose", "MatMul", "Softmax", "MatMul", "Reshape")),
    ("attention.query", "torch.nn.modules.linear.Linear", ("MatMul", "Add")),
    ("attention.key", "torch.nn.modules.linear.Linear", ("MatMul", "Add")),
    ("attention.value", "torch.nn.modules.linear.Linear", ("MatMul", "Add")),
    ("norm", "torch.nn.modules.normalization.LayerNorm", ("LayerNormalization",)),
    ("feed_forward", "models.stack.StackFeedForward", ("Mul",)),
    ("feed_forward.inner", "torch.nn.modules.linear.Linear", ("MatMul", "Add")),
    ("feed_forward.outer", "torch.nn.modules.linear.Linear", ("MatMul", "Add")),
)
NODES_PER_LAYER = sum(len(operations) for _, _, operations in LAYER)


def write_tagged_model(path: Path, nodes: int) -> Path:
    """Write a model of at least so many nodes, tagged as an export would, with its sidecar beside it."""
    layers = -(-nodes // NODES_PER_LAYER)
    weight, seen = TensorInfo((WIDTH, WIDTH), "float32"), TensorInfo((1, 16, WIDTH), "float32")
    modules = {"": ModuleInfo("", "Stack", "models.stack.Stack"), "layers": _module("layers", "torch.nn.ModuleList")}
    calls = {ROOT_CALL: ModuleCall("")}
    protos: list[onnx.NodeProto] = []
    records: list[tuple[str, str, Attribution]] = []
    value = "input"
    for number in range(layers):
        for below, qualified, operations in LAYER:
            module = f"layers.{number}.{below}".rstrip(".")
            modules[module] = _module(module, qualified, {"weight": weight} if "Linear" in qualified else {})
            call = CallId(module)
            parent = CallId(parent_path(module) or "") if below else ROOT_CALL
            entering = BoundaryTensor("hidden_states", value, seen)
            for operation in operations:
                output = f"{operation.lower()}_{len(protos)}"
                inputs = [value, "weight"] if operation in ("MatMul", "Add", "Mul", "Reshape") else [value]
                made = helper.make_node(operation, inputs, [output], name=f"node_{output}")
                # As torch's exporter writes it beside what we add.
                made.metadata_props.add(key="namespace", value=f": models.stack.Stack/{module}: {qualified}/{output}")
                protos.append(made)
                found = recorded_by_exporter(call)
                if len(protos) % 50 == 0:
                    reason = "equal nodes of several calls became this one"
                    found = Attribution(call, Kind.MERGED, 0.9, reason, (ROOT_CALL,))
                records.append((output, operation, found))
                value = output
            calls[call] = ModuleCall(module, 0, parent, (entering,), (BoundaryTensor("output", value, seen),))
    shape = [1, 16, WIDTH]
    graph = helper.make_graph(
        protos,
        "main_graph",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        [helper.make_tensor("weight", TensorProto.FLOAT, [WIDTH, WIDTH], bytes(4 * WIDTH * WIDTH), raw=True)],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, _, _ in records[:-1]],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    document = build_document(
        strategy="fx",
        exporter="dynamo",
        graph_hash=graph_hash(model),
        view=TagView(),
        tree=ModuleTree(_with_children(modules)),
        calls=CallTree(calls),
        nodes=records,
        graph_tensors=tensors_with_ids(ir.from_proto(model)),
    )
    write_stores(model, document)
    path.write_bytes(model.SerializeToString())
    sidecar_path(path).write_bytes(encode_document(document))
    return path


def _with_children(modules: dict[str, ModuleInfo]) -> dict[str, ModuleInfo]:
    children: dict[str, dict[str, str]] = {}
    for path, module in modules.items():
        above = parent_path(path)
        if above is not None:
            children.setdefault(above, {})[path.rpartition(".")[2]] = module.class_name
    return {path: msgspec.structs.replace(module, children=children.get(path, {})) for path, module in modules.items()}


def _module(path: str, qualified: str, parameters: dict[str, TensorInfo] | None = None) -> ModuleInfo:
    return ModuleInfo(path, qualified.rpartition(".")[2], qualified, parameters=parameters or {})
