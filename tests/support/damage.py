"""Exported files with one thing wrong in what they compute, tags and names as they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

from modelexport.graph.digest import graph_hash
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.document_codec import encode_document
from modelexport.storage.transaction import sidecar_path


def change_weight(source: Path, target: Path, document: HierarchyDocument, call: str) -> str:
    """Write a copy whose largest weight among those that the call reads is other numbers. Gives the weight's name."""
    model = onnx.load(source)
    read = {t.id for t in document.tensors if t.source == "weight" and call in t.consumers}
    floats = [w for w in model.graph.initializer if w.name in read and w.data_type == onnx.TensorProto.FLOAT]
    weight = max(floats, key=lambda w: np.prod(w.dims))
    array = onnx.numpy_helper.to_array(weight)
    noise = np.random.default_rng(3).normal(0, 0.1, array.shape).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(array + noise, weight.name))
    onnx.save(model, target)
    shutil.copy(sidecar_path(source), sidecar_path(target))
    return weight.name


def change_attribute(
    source: Path, target: Path, document: HierarchyDocument, call: str, name: str, number: float
) -> str:
    """Write a copy where a node of the call has another number for one attribute. Gives the node's identity."""
    model = onnx.load(source)
    own = {node.id for node in document.nodes if call in (node.module, *node.contributors)}
    node = next(n for n in model.graph.node if n.output[0] in own and name in {a.name for a in n.attribute})
    next(a for a in node.attribute if a.name == name).f = number
    onnx.save(model, target)
    # As if the exporter had written it so: the sidecar is that of this very graph.
    changed = msgspec.structs.replace(document, graph_hash=graph_hash(ir.from_proto(model)))
    sidecar_path(target).write_bytes(encode_document(changed))
    return node.output[0]
