"""An ONNX file with its hierarchy, from the sidecar if it belongs to the graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError
from modelexport.graph import nodes_with_ids
from modelexport.hierarchy import HierarchyDocument
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage.metadata_stores import StoredHierarchy, read_doc_string
from modelexport.storage.opened_file import describe_file, existing_file, find_document, read_proto


def _summary(loaded: LoadedModel) -> Summary:
    return describe_file(loaded.path, loaded.document, len(loaded.stored), loaded.missing)


@summarized(_summary)
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


def load(path: str | Path, limits: ReadLimits = DEFAULT_LIMITS) -> LoadedModel:
    """Read an ONNX file and its hierarchy.

    Args:
        path: The file.
        limits: How large and how deep a file is accepted.

    Raises:
        InputError: There is no such file.
        FileFormatError: It is not an ONNX model, or its sidecar is damaged.
    """
    file = existing_file(path)
    proto = read_proto(file, limits, weights=True)
    document, missing = find_document(file, proto, limits)
    model = build_ir(file, proto)
    stored = {
        identity: found
        for identity, node in nodes_with_ids(model)
        if (found := read_doc_string(node.doc_string)) is not None
    }
    return LoadedModel(file, model, document, stored, missing)


def build_ir(file: Path, proto: onnx.ModelProto) -> ir.Model:
    """Convert a model that was parsed from a file; external data is looked up in the folder of the file.

    Raises:
        FileFormatError: onnx_ir cannot represent the model.
    """
    try:
        model = ir.from_proto(proto)
        # By its own folder, so that tensors in other files are looked for there.
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            ir.external_data.set_base_dir(graph, file.parent)
    except Exception as error:
        raise FileFormatError(f"{file} cannot be read as an ONNX model: {type(error).__name__}: {error}") from error
    return model
