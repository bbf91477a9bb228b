"""An ONNX file with its hierarchy, from the sidecar if it belongs to the graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from modelexport.artifact import sidecar_path
from modelexport.carriers import StoredHierarchy, read_doc_string, read_sidecar
from modelexport.document import HierarchyDocument
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import graph_hash, identified_nodes


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model file and what it says of its hierarchy.

    Attributes:
        path: The file.
        model: The graph; weights in other files are not read until asked for.
        document: The sidecar's content, or None where there is none for this graph.
        stored: What the nodes themselves say, by node identity.
        missing: Why there is no document, in words; empty where there is one.
    """

    path: Path
    model: ir.Model
    document: HierarchyDocument | None
    stored: dict[str, StoredHierarchy]
    missing: str = ""

    def tag_counts(self) -> dict[str, int]:
        """How many nodes carry each tag, from what the nodes themselves say."""
        return dict(Counter(stored.hierarchy_path for stored in self.stored.values()))


def load(path: str | Path) -> LoadedModel:
    """Read an ONNX file and its hierarchy.

    Raises:
        InputError: There is no such file.
        FileFormatError: It is not an ONNX model, or its sidecar is damaged.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise InputError(f"{path} is not a file: give the path of an ONNX model")
    model = _read_model(file)
    nodes = identified_nodes(model)
    stored = {identity: found for identity, node in nodes if (found := read_doc_string(node.doc_string)) is not None}
    sidecar = sidecar_path(file)
    if not sidecar.is_file():
        return LoadedModel(file, model, None, stored, f"there is no sidecar {sidecar.name}")
    document = read_sidecar(sidecar)
    if document.graph_hash != graph_hash(model):
        reason = f"the sidecar {sidecar.name} describes another graph than {file.name}"
        return LoadedModel(file, model, None, stored, reason)
    return LoadedModel(file, model, document, stored)


def _read_model(file: Path) -> ir.Model:
    if file.stat().st_size == 0:
        raise FileFormatError(f"{file} is empty: it is not an ONNX model")
    try:
        proto = onnx.load_model(file, load_external_data=False)
        # By its own folder, so that tensors in other files are looked for there.
        model = ir.from_proto(proto)
        ir.external_data.set_base_dir(model.graph, file.parent)
    except Exception as error:
        raise FileFormatError(f"{file} cannot be read as an ONNX model: {type(error).__name__}: {error}") from error
    if not proto.HasField("graph"):
        raise FileFormatError(f"{file} holds no graph: it is not an ONNX model")
    return model
