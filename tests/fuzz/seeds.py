"""The valid files that mutated ones are made of: subgraphs, functions, external weights, with and without sidecar."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
from onnx import helper

import modelexport
from modelexport.graph.digest import graph_hash
from modelexport.graph.node_ids import proto_nodes_with_ids
from modelexport.graph.tensors import tensors_with_ids
from modelexport.hierarchy.document import HierarchyDocument, NodeRecord
from modelexport.hierarchy.document_codec import encode_document
from modelexport.storage.document_builder import tensor_records
from modelexport.storage.metadata_stores import write_stores
from modelexport.storage.transaction import sidecar_path
from tests.support import zoo

# With subgraphs of control flow, and with a module that is called twice.
MODELS = ("cond", "shared_block")
MODEL = "model.onnx"
SIDECAR = "model_hierarchy.json"
DATA = "weights.data"


@dataclasses.dataclass(frozen=True)
class Seed:
    """A valid file: the model, its sidecar (None where it has none), and the content of its data file.

    `base` is the seed with a hierarchy whose graph it has: itself, where it has one.
    """

    name: str
    base: str
    model: bytes
    sidecar: bytes | None
    data: bytes

    @property
    def example(self) -> str:
        """The model that it was exported from."""
        return self.base if self.base in MODELS else MODELS[1]

    def save(self, folder: Path) -> None:
        """Write it as a whole."""
        (folder / MODEL).write_bytes(self.model)
        if self.sidecar is not None:
            (folder / SIDECAR).write_bytes(self.sidecar)
        (folder / DATA).write_bytes(self.data)


def export_seeds(folder: Path) -> list[Seed]:
    """Export what the seeds are made of. `folder` keeps them: exported once, read from there afterwards."""
    paths = []
    for name in MODELS:
        path = folder / name / MODEL
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            example = zoo.build(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                modelexport.export_model(example.model, example.inputs, path)
        paths.append(path)
    return make_seeds(*paths)


def make_seeds(with_subgraphs: Path, with_calls: Path) -> list[Seed]:
    """The seeds, from exports of `MODELS`."""
    subgraphs, calls = ((onnx.load(path), sidecar_path(path).read_bytes()) for path in (with_subgraphs, with_calls))
    document = msgspec.json.decode(calls[1], type=HierarchyDocument)
    return [
        Seed("cond", "cond", subgraphs[0].SerializeToString(), subgraphs[1], b""),
        Seed("shared_block", "shared_block", calls[0].SerializeToString(), calls[1], b""),
        _with_functions_and_external_data(calls[0], document),
        Seed("torch metadata", "cond", modelexport.strip_hierarchy(subgraphs[0]).SerializeToString(), None, b""),
        Seed("doc strings alone", "shared_block", calls[0].SerializeToString(), None, b""),
        _with_scoped_names(calls[0]),
    ]


def _with_functions_and_external_data(model: onnx.ModelProto, document: HierarchyDocument) -> Seed:
    """A function that calls another is put behind the model's result, and its weights go to a data file."""
    changed = modelexport.strip_hierarchy(model)
    opsets = [helper.make_opsetid("", changed.opset_import[0].version), helper.make_opsetid("local", 1)]
    inner = helper.make_function("local", "Inner", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], opsets)
    nodes = [
        helper.make_node("Inner", ["a"], ["m"], domain="local"),
        helper.make_node("LeakyRelu", ["m"], ["b"], name="leak", alpha=0.5),
    ]
    outer = helper.make_function("local", "Outer", ["a"], ["b"], nodes, opsets)
    changed.functions.extend([inner, outer])
    changed.opset_import.append(helper.make_opsetid("local", 1))
    result = changed.graph.output[0].name
    changed.graph.node.append(helper.make_node("Outer", [result], ["last"], name="outer", domain="local"))
    changed.graph.output[0].name = "last"
    data = bytearray()
    for tensor in changed.graph.initializer:
        content = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", DATA), ("offset", len(data)), ("length", len(content))):
            tensor.external_data.add(key=key, value=str(value))
        data += content
    known = {record.id: record for record in document.nodes}
    root = next(call for call in document.calls if call.parent is None)
    records = tuple(
        known.get(identity) or NodeRecord(identity, node.op_type, root.id, root.tag, "inferred", 0.5, "added")
        for identity, node in proto_nodes_with_ids(changed)
    )
    tensors = tensor_records(tensors_with_ids(ir.from_proto(changed)), records, document.tree(), {})
    described = msgspec.structs.replace(document, nodes=records, tensors=tensors, graph_hash=graph_hash(changed))
    write_stores(changed, described)
    return Seed("functions", "functions", changed.SerializeToString(), encode_document(described), bytes(data))


def _with_scoped_names(model: onnx.ModelProto) -> Seed:
    """Node names as the TorchScript exporter writes them, and nothing else that speaks of modules."""
    bare = modelexport.strip_hierarchy(model)
    for number, node in enumerate(bare.graph.node):
        del node.metadata_props[:]
        node.name = f"/blk{'_1' if number % 2 else ''}/lin/{node.op_type}"
    return Seed("scoped names", "shared_block", bare.SerializeToString(), None, b"")
