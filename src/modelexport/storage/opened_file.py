"""An opened ONNX file: the model and its hierarchy, each part read or built at first use, and once."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from modelexport.deadline import reads_files
from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError, InputError, StorageError
from modelexport.graph import graph_hash, proto_nodes_with_ids
from modelexport.hierarchy import HierarchyDocument
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage.commit_journal import roll_back_killed_commit
from modelexport.storage.external_data import DataFolder, cache_repository, read_when_used
from modelexport.storage.metadata_stores import (
    NodeStores,
    StoredHierarchy,
    named_graph,
    read_doc_string,
    read_node_stores,
    read_sidecar,
)
from modelexport.storage.transaction import sidecar_path
from modelexport.storage.untrusted_checks import check_model
from modelexport.storage.wire_format import read_skeleton, scan

# A smaller file is read whole.
_WHOLE_BYTES = 2**20
# How many sidecars of other names are looked at.
_MOST_SIDECARS = 200


def _summary(file: ModelFile) -> Summary:
    document = file.document
    if document is None:
        return Summary({"path": file.path, "tagged_nodes": len(file.stored), "missing": file.missing})
    facts = {
        "path": file.path,
        "nodes": len(document.nodes),
        "calls": len(document.calls),
        "strategy": document.strategy,
    }
    classes = {module.path: module.class_name for module in document.modules}
    rows = [(call.id or "(root)", classes.get(call.path, ""), call.tag) for call in document.calls]
    return Summary(facts, ("call", "class", "tag"), rows)


@summarized(_summary)
class ModelFile:
    """An ONNX file and its hierarchy.

    Every attribute but `path` is read or built at first use, and kept. `read_model` and `load` return an instance
    that is already read; on one created directly, each attribute raises FileFormatError where its part of the file
    is invalid.

    Attributes:
        path: The absolute path of the file.
    """

    def __init__(self, path: str | Path, limits: ReadLimits = DEFAULT_LIMITS, *, weights: bool = False) -> None:
        """Open a file without reading it.

        Args:
            path: The file.
            limits: How large and how deep a file is accepted.
            weights: Whether `proto` includes the content of large weights.

        Raises:
            InputError: The file does not exist.
        """
        if not isinstance(limits, ReadLimits):
            raise InputError(f"limits are modelexport.ReadLimits, not {type(limits).__name__}")
        self.path = existing_file(path)
        self._limits = limits
        self._has_weights = weights

    @functools.cached_property
    def proto(self) -> onnx.ModelProto:
        """The model; without the content of large weights unless the file was opened with them."""
        return read_proto(self.path, self._limits, weights=self._has_weights)

    @functools.cached_property
    def nodes(self) -> list[tuple[str, onnx.NodeProto]]:
        """Every node with its id: the main graph, its subgraphs, then local functions."""
        return proto_nodes_with_ids(self.proto)

    @functools.cached_property
    def graph_hash(self) -> str:
        """The hash of the graph without metadata."""
        return _hash_graph(self.path, self.proto, self.nodes)

    @functools.cached_property
    def model(self) -> ir.Model:
        """The model as onnx_ir has it; weights that are external or were not read yet are read when they are used."""
        model = build_ir(self.path, self.proto, self._limits)
        for tensor in () if self._has_weights else filter(_is_left_out, self.proto.graph.initializer):
            value = model.graph.initializers.get(tensor.name)
            if value is not None and value.const_value is not None:
                read = functools.partial(self._weight, tensor.name)
                value.const_value = ir.LazyTensor(
                    read, value.const_value.dtype, ir.Shape(tensor.dims), name=tensor.name
                )
        return model

    def _weight(self, name: str) -> ir.TensorProtocol:
        return ir.serde.deserialize_tensor(self._weights[name])

    @functools.cached_property
    def _weights(self) -> Mapping[str, onnx.TensorProto]:
        """The weights with their content: all of them, read when the first is used."""
        proto = read_proto(self.path, self._limits, weights=True)
        if _hash_graph(self.path, proto, proto_nodes_with_ids(proto)) != self.graph_hash:
            raise FileFormatError(f"{self.path} was changed after it was opened: open it again")
        return {tensor.name: tensor for tensor in proto.graph.initializer}

    @functools.cached_property
    def sidecar(self) -> Path:
        """The path of its sidecar, which may not exist.

        If the file has no sidecar of its own name, the one in its folder that names the hash of its graph: files get
        renamed.
        """
        own = sidecar_path(self.path)
        if own.exists():
            return own
        folder = DataFolder(self.path, self._limits)
        others = sorted(p for p in folder.path.glob("*_hierarchy.json") if p.is_file() and folder.contains(p))
        with contextlib.suppress(FileFormatError):
            return next((path for path in others[:_MOST_SIDECARS] if named_graph(path) == self.graph_hash), own)
        return own

    @functools.cached_property
    def sidecar_document(self) -> HierarchyDocument | None:
        """The content of the sidecar, whichever graph it describes; None where there is no sidecar.

        Raises:
            FileFormatError: The sidecar is damaged, too large, or a link to outside the model's folder.
        """
        if not self.sidecar.is_file():
            return None
        if not DataFolder(self.path, self._limits).contains(self.sidecar):
            raise FileFormatError(f"{self.sidecar} is a link to outside its folder: it is not followed")
        return read_sidecar(self.sidecar, self._limits)

    @functools.cached_property
    def document(self) -> HierarchyDocument | None:
        """The content of the sidecar if it describes this graph; `missing` has the reason where it is None.

        Raises:
            FileFormatError: The sidecar cannot be read, or describes this graph with other nodes.
        """
        document = self.sidecar_document
        if document is None or document.graph_hash != self.graph_hash:
            return None
        if [record.id for record in document.nodes] != [node_id for node_id, _ in self.nodes]:
            raise FileFormatError(
                f"{self.sidecar} has the hash of this graph but lists other nodes: it was edited; export again"
            )
        return document

    @property
    def missing(self) -> str:
        """Why there is no `document`; empty where there is one."""
        if self.document is not None:
            return ""
        if self.sidecar_document is None:
            return f"there is no sidecar {self.sidecar.name}"
        return f"the sidecar {self.sidecar.name} describes another graph than {self.path.name}"

    @functools.cached_property
    def stores(self) -> list[NodeStores]:
        """The hierarchy stored in each node, `doc_string` and `metadata_props`, in the order of `nodes`."""
        return [read_node_stores(node) for _, node in self.nodes]

    @functools.cached_property
    def stored(self) -> dict[str, StoredHierarchy]:
        """The hierarchy in the nodes' `doc_string`, by node id."""
        return {
            node_id: found for node_id, node in self.nodes if (found := read_doc_string(node.doc_string)) is not None
        }

    def tag_counts(self) -> dict[str, int]:
        """The number of nodes with each tag, from the nodes' `doc_string`."""
        return dict(Counter(stored.hierarchy_path for stored in self.stored.values()))


@summarized(_summary)
class LoadedModel(ModelFile):
    """An ONNX file that `load` read with its weights. It has the attributes of `ModelFile`."""


@reads_files()
def read_model(path: str | Path, limits: ReadLimits = DEFAULT_LIMITS) -> ModelFile:
    """Read an ONNX file and its hierarchy without its weights.

    Raises:
        InputError: The file does not exist.
        FileFormatError: It is not an ONNX model, exceeds a limit, or its sidecar is damaged.
    """
    file = ModelFile(path, limits)
    _ = file.nodes, file.document
    return file


@reads_files()
def load(path: str | Path, limits: ReadLimits = DEFAULT_LIMITS) -> LoadedModel:
    """Read an ONNX file with its weights, and its hierarchy.

    Args:
        path: The file.
        limits: How large and how deep a file is accepted.

    Raises:
        InputError: The file does not exist.
        FileFormatError: It is not an ONNX model, exceeds a limit, or its sidecar is damaged.
    """
    file = LoadedModel(path, limits, weights=True)
    _ = file.document, file.model
    return file


def existing_file(path: str | Path) -> Path:
    """The absolute path of a regular file with links resolved, except the links of a HuggingFace cache.

    A commit to it that was killed is rolled back first, as the next export would do: the file and its sidecar are one
    set. In a cache only the links have the names of a model, its weights and its sidecar.

    Raises:
        InputError: The file does not exist.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"an ONNX file is given by its path, not by {type(path).__name__}")
    file = Path(path)
    # What cannot be rolled back, in a folder that is not ours for example, is read as it is.
    with contextlib.suppress(StorageError):
        roll_back_killed_commit(file)
    try:
        exists = file.is_file()
    except OSError:  # a name that is too long
        exists = False
    if not exists:
        raise InputError(f"{path} is not a file: give the path of an ONNX model")
    named = DataFolder(file, DEFAULT_LIMITS).path / file.name
    return named if cache_repository(named) is not None else named.resolve()


@reads_files()
def read_proto(file: Path, limits: ReadLimits = DEFAULT_LIMITS, *, weights: bool) -> onnx.ModelProto:
    """Parse and check a model file.

    Args:
        file: An existing file.
        limits: How large and how deep a file is accepted.
        weights: Whether to read the content of large weights stored in the file.

    Raises:
        FileFormatError: It is not an ONNX model, exceeds a limit, or refers to files or functions that it must not.
    """
    try:
        size = file.stat().st_size
        if size == 0:
            raise FileFormatError(f"{file} is empty: it is not an ONNX model")
        if size > limits.model_bytes:
            raise FileFormatError(f"{file} has {size} bytes, more than the limit of {limits.model_bytes}")
        # Not mapped into memory: another process may truncate the file meanwhile, which would end this one.
        with file.open("rb") as stream:
            data = stream.read(size) if weights or size <= _WHOLE_BYTES else read_skeleton(stream, size)
        proto = _parse(file, data, limits)
    except ValueError as error:
        raise FileFormatError(f"{file} cannot be read as an ONNX model: {error}") from error
    except OSError as error:
        raise FileFormatError(f"{file} cannot be read: {error.strerror or error}") from error
    if not proto.HasField("graph"):
        raise FileFormatError(f"{file} has no graph: it is not an ONNX model")
    check_model(proto, file, limits)
    return proto


def _parse(file: Path, data: bytes, limits: ReadLimits) -> onnx.ModelProto:
    nodes, nesting = scan(data, limits.nodes, limits.nesting)
    if nodes > limits.nodes:
        raise FileFormatError(
            f"{file} has more nodes than the limit of {limits.nodes} (ReadLimits.nodes in Python raises it)"
        )
    if nesting > limits.nesting:
        raise FileFormatError(f"{file} has subgraphs nested deeper than the limit of {limits.nesting}")
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:
        raise _not_onnx(file, error) from error


def build_ir(file: Path, proto: onnx.ModelProto, limits: ReadLimits = DEFAULT_LIMITS) -> ir.Model:
    """The onnx_ir model of a proto, with external weights in the folder of `file`.

    Raises:
        FileFormatError: onnx_ir cannot represent the model.
    """
    try:
        model = ir.from_proto(proto)
        folder = DataFolder(file, limits)
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            read_when_used(graph, folder)
    except Exception as error:
        raise _not_onnx(file, error) from error
    return model


def _is_left_out(tensor: onnx.TensorProto) -> bool:
    """Whether the content of a weight was not read."""
    fields = ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
    is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
    return not is_external and all(tensor.dims) and not any(len(getattr(tensor, name)) for name in fields)


def _hash_graph(file: Path, proto: onnx.ModelProto, nodes: list[tuple[str, onnx.NodeProto]]) -> str:
    try:
        return graph_hash(proto, nodes)
    except Exception as error:  # an attribute of an invalid type
        raise _not_onnx(file, error) from error


def _not_onnx(file: Path, error: Exception) -> FileFormatError:
    return FileFormatError(f"{file} cannot be read as an ONNX model: {type(error).__name__}: {error}")
