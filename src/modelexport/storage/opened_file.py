"""A model file and its hierarchy, read lightly: no graph is built from it, and the content of weights is not read."""

from __future__ import annotations

import dataclasses
import functools
import mmap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx

from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import graph_hash, proto_nodes_with_ids
from modelexport.hierarchy import HierarchyDocument
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage.metadata_stores import StoredHierarchy, read_doc_string, read_sidecar
from modelexport.storage.transaction import sidecar_path
from modelexport.storage.untrusted_checks import DataFolder, cache_repository, check_model
from modelexport.storage.wire_format import read_skeleton, scan

# Weights that take less than this together are parsed with the rest.
_SKIPPED_BYTES = 2**20


def describe_file(path: Path, document: HierarchyDocument | None, tagged: int, missing: str) -> Summary:
    """What a repr and a notebook show of a model file."""
    if document is None:
        return Summary({"path": path, "tagged_nodes": tagged, "missing": missing})
    facts = {"path": path, "nodes": len(document.nodes), "calls": len(document.calls), "strategy": document.strategy}
    classes = {module.path: module.class_name for module in document.modules}
    rows = [(call.id or "(root)", classes.get(call.path, ""), call.tag) for call in document.calls]
    return Summary(facts, ("call", "class", "tag"), rows)


def _summary(file: ModelFile) -> Summary:
    return describe_file(file.path, file.document, len(file.stored), file.missing)


@summarized(_summary)
@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A model file as it lies there, and what it says of its hierarchy.

    Attributes:
        path: The file.
        proto: The model; large weights have no content.
        nodes: Every node with its identity: main graph, bodies within, then local functions.
        document: The sidecar's content, or None where there is none for this graph.
        missing: Why there is no document, in words; empty where there is one.
    """

    path: Path
    proto: onnx.ModelProto
    nodes: list[tuple[str, onnx.NodeProto]]
    document: HierarchyDocument | None
    missing: str = ""

    @functools.cached_property
    def stored(self) -> dict[str, StoredHierarchy]:
        """What the nodes themselves say in their `doc_string`, by node identity."""
        return {
            identity: found for identity, node in self.nodes if (found := read_doc_string(node.doc_string)) is not None
        }

    def tag_counts(self) -> dict[str, int]:
        """How many nodes carry each tag, from what the nodes themselves say."""
        return dict(Counter(stored.hierarchy_path for stored in self.stored.values()))


def read_model(path: str | Path, limits: ReadLimits = DEFAULT_LIMITS) -> ModelFile:
    """Read an ONNX file and its hierarchy without its weights.

    Raises:
        InputError: There is no such file.
        FileFormatError: It is not an ONNX model, does what no model should, or its sidecar is damaged.
    """
    file = existing_file(path)
    proto = read_proto(file, limits, weights=False)
    nodes = proto_nodes_with_ids(proto)
    document, missing = find_document(file, proto, limits, nodes)
    return ModelFile(file, proto, nodes, document, missing)


def existing_file(path: str | Path) -> Path:
    """The absolute path of a regular file, with links followed, but for those of a HuggingFace cache.

    There the names that belong together are those of the links: a model, its weights and its sidecar.

    Raises:
        InputError: There is no such file.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path} is not a file: give the path of an ONNX model")
    named = DataFolder(file, DEFAULT_LIMITS).path / file.name
    return named if cache_repository(named) is not None else named.resolve()


def read_proto(file: Path, limits: ReadLimits = DEFAULT_LIMITS, *, weights: bool) -> onnx.ModelProto:
    """Parse and check a model file.

    Args:
        file: An existing file.
        limits: What is accepted.
        weights: Whether the content of large weights inside of the file is needed.

    Raises:
        FileFormatError: It is not an ONNX model, passes a limit, or does what no model should.
    """
    try:
        size = file.stat().st_size
        if size == 0:
            raise FileFormatError(f"{file} is empty: it is not an ONNX model")
        if size > limits.model_bytes:
            raise FileFormatError(f"{file} has {size} bytes, more than the limit of {limits.model_bytes}")
        with file.open("rb") as opened:
            # Closed when the last view of it is gone.
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        proto = _parse(file, data, limits, weights)
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror or error}") from error
    if not proto.HasField("graph"):
        raise FileFormatError(f"{file} holds no graph: it is not an ONNX model")
    check_model(proto, file, limits)
    return proto


def _parse(file: Path, data: mmap.mmap, limits: ReadLimits, weights: bool) -> onnx.ModelProto:
    try:
        found = scan(data, limits.nodes, limits.nesting)
    except ValueError as error:
        raise FileFormatError(f"{file} cannot be read as an ONNX model: {error}") from error
    if found.nodes > limits.nodes:
        raise FileFormatError(f"{file} has more nodes than the limit of {limits.nodes}")
    if found.nesting > limits.nesting:
        raise FileFormatError(f"{file} has bodies nested deeper than the limit of {limits.nesting}")
    try:
        if not weights and found.weight_bytes > _SKIPPED_BYTES:
            return read_skeleton(memoryview(data))
        return onnx.load_model_from_string(data[:])
    except Exception as error:
        raise FileFormatError(f"{file} cannot be read as an ONNX model: {type(error).__name__}: {error}") from error


def find_document(
    file: Path,
    proto: onnx.ModelProto,
    limits: ReadLimits = DEFAULT_LIMITS,
    nodes: Sequence[tuple[str, onnx.NodeProto]] | None = None,
) -> tuple[HierarchyDocument | None, str]:
    """The sidecar's content if it describes this graph, and why there is none otherwise.

    Raises:
        FileFormatError: The sidecar is damaged, too large, or a link out of the model's folder.
    """
    sidecar = sidecar_path(file)
    if not sidecar.is_file():
        return None, f"there is no sidecar {sidecar.name}"
    if not DataFolder(file, limits).contains(sidecar):
        raise FileFormatError(f"{sidecar} is a link to outside its folder: it is not followed")
    document = read_sidecar(sidecar, limits)
    nodes = proto_nodes_with_ids(proto) if nodes is None else nodes
    if document.graph_hash != hash_file(file, proto, nodes):
        return None, f"the sidecar {sidecar.name} describes another graph than {file.name}"
    if [record.id for record in document.nodes] != [identity for identity, _ in nodes]:
        raise FileFormatError(f"{sidecar} is of this graph, and yet lists other nodes: it was changed; export again")
    return document, ""


def hash_file(file: Path, proto: onnx.ModelProto, nodes: Sequence[tuple[str, onnx.NodeProto]]) -> str:
    """The digest of a file's graph.

    Raises:
        FileFormatError: The graph has an attribute that is none.
    """
    try:
        return graph_hash(proto, nodes)
    except Exception as error:
        raise FileFormatError(f"{file} cannot be read as an ONNX model: {type(error).__name__}: {error}") from error
