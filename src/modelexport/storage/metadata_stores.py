"""Write the document to an ONNX model and read it back. No other module knows our metadata keys.

The document has three stores: each node's `doc_string` (JSON, for every IR version), each node's `metadata_props`, and
the sidecar beside the file (the whole document). Viewers group nodes by torch's `namespace` property, so a node without
one gets one too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, overload

import msgspec
import onnx
import onnx_ir as ir

from modelexport._version import __version__
from modelexport.display import printable
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import nodes_with_ids, proto_nodes_with_ids
from modelexport.hierarchy import MAX_DEPTH, HierarchyDocument, NodeRecord, decode_document
from modelexport.limits import DEFAULT_LIMITS, ReadLimits

PREFIX = "pkg.modelexport."
TAG_KEY = f"{PREFIX}tag"
MODULE_KEY = f"{PREFIX}module"
KIND_KEY = f"{PREFIX}kind"
VERSION_KEY = f"{PREFIX}version"
STRATEGY_KEY = f"{PREFIX}strategy"
# Written by torch's exporter too; Model Explorer groups nodes by it. It repeats the path of every enclosing call, so it
# has a limit: an untrusted file can have deep paths and many nodes.
NAMESPACE_KEY = "namespace"
_MAX_NAMESPACE = 4096

# The first IR version whose nodes have metadata_props.
_NODE_METADATA_IR_VERSION = 10
# Where `encode_document` writes the hash.
_GRAPH_HASH = re.compile(rb'"graph_hash": *"([0-9a-f]{32})"')
_HEAD_BYTES = 4096
# A stack trace: a Python source file, or generated code.
_SOURCE_REFERENCE = re.compile(r'File "|<eval_with_key>|\.py\b')


# Where torch's exporter says which code made a node: the outermost frame first.
_STACK_TRACE_KEY = "pkg.torch.onnx.stack_trace"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# torch's own code is not what a user can change.
_OF_TORCH = re.compile(r"(^|[\\/])torch[\\/]")


class StoredHierarchy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a node's `doc_string`; its own `doc_string` field keeps the exporter's text.

    `namespace` says that the node's `namespace` property is ours too.
    """

    hierarchy_tags: tuple[str, ...]
    hierarchy_path: str
    hierarchy_count: int
    hierarchy_method: str
    module: str
    kind: str
    doc_string: str | None = None
    namespace: bool = False


def write_stores(model: ir.Model | onnx.ModelProto, document: HierarchyDocument) -> None:
    """Write the document's nodes into the model, in place."""
    tags = {call.id: call.tag for call in document.calls}
    records = {record.id: record for record in document.nodes}
    properties = {VERSION_KEY: __version__, STRATEGY_KEY: document.strategy}
    namespaces = _Namespaces(document)
    has_properties = model.ir_version >= _NODE_METADATA_IR_VERSION
    for node_id, node in _nodes(model):
        record = records[node_id]
        own = _properties(record)
        if NAMESPACE_KEY not in _keys(node.metadata_props):
            own |= namespaces.of(record)
        ours = has_properties and NAMESPACE_KEY in own
        node.doc_string = _doc_string(record, tags, document.strategy, node.doc_string, namespace=ours)
        if has_properties:
            _add(node.metadata_props, own)
    _add(model.metadata_props, properties)


def _nodes(model: ir.Model | onnx.ModelProto) -> Iterable[tuple[str, Any]]:
    return nodes_with_ids(model) if isinstance(model, ir.Model) else proto_nodes_with_ids(model)


# The properties of a model or node: a dict in onnx_ir, a list of entries in a proto.


def _keys(properties: Any) -> list[str]:
    return list(properties) if isinstance(properties, dict) else [entry.key for entry in properties]


def _add(properties: Any, new: Mapping[str, str]) -> None:
    if isinstance(properties, dict):
        properties.update(new)
        return
    for key, value in new.items():
        properties.add(key=key, value=value)


def _remove_ours(properties: Any, *, namespace: bool = False) -> None:
    keys = _keys(properties)
    ours = [p for p, key in enumerate(keys) if _is_ours(key) or (namespace and key == NAMESPACE_KEY)]
    # Deleted in place: protobuf can read entries that are not UTF-8, but not create them.
    for position in reversed(ours):
        del properties[keys[position] if isinstance(properties, dict) else position]


class _Namespaces:
    """The `namespace` property of nodes, as torch's exporter writes it: ``: Net/blk: my.Block/node: operator``."""

    def __init__(self, document: HierarchyDocument) -> None:
        self._calls = {call.id: call for call in document.calls}
        self._classes = {module.path: module.qualified_class for module in document.modules}
        self._known: dict[str, str] = {}

    def of(self, record: NodeRecord) -> dict[str, str]:
        """The property of a node; none if it would be very long."""
        # Each slash begins a group, and ids have some: those of subgraph nodes, and of TorchScript's exporter.
        found = f"{self._of_call(record.module)}{record.id.replace('/', '.')}: {record.op}"
        return {NAMESPACE_KEY: found} if len(found) <= _MAX_NAMESPACE else {}

    def _of_call(self, call_id: str) -> str:
        if call_id not in self._known:
            call = self._calls[call_id]
            parent = self._of_call(call.parent) if call.parent is not None else ""
            found = f"{parent}{call.path}: {self._classes.get(call.path, '')}/"
            self._known[call_id] = found[: _MAX_NAMESPACE + 1]
        return self._known[call_id]


def _properties(record: NodeRecord) -> dict[str, str]:
    return {TAG_KEY: record.tag, MODULE_KEY: record.module, KIND_KEY: record.kind}


def _doc_string(
    record: NodeRecord, tags: Mapping[str, str], strategy: str, before: str | None, *, namespace: bool
) -> str:
    hierarchy_tags = (record.tag, *(tags[call] for call in record.contributors))
    stored = StoredHierarchy(
        hierarchy_tags=hierarchy_tags,
        hierarchy_path=record.tag,
        hierarchy_count=len(hierarchy_tags),
        hierarchy_method=strategy,
        module=record.module,
        kind=record.kind,
        doc_string=before or None,
        namespace=namespace,
    )
    return msgspec.json.encode(stored).decode()


def read_doc_string(text: str | None) -> StoredHierarchy | None:
    """The content of a `doc_string` that we wrote; None for any other text."""
    # Protobuf returns text that is not UTF-8 as bytes.
    if not isinstance(text, str) or not text.startswith("{"):
        return None
    try:
        stored = msgspec.json.decode(text, type=StoredHierarchy)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # Every enclosing module is created from the path, so a short path of an untrusted file could take much memory.
    return stored if stored.module.count(".") <= MAX_DEPTH else None


class NodeStores(msgspec.Struct, frozen=True):
    """The hierarchy stored in a node: in its `doc_string` and in its `metadata_props`.

    Attributes:
        doc_string: The content of the `doc_string`, if we wrote it.
        tag: The tag in the properties.
        module: The owner in the properties.
        kind: The kind of the attribution in the properties.
        damaged: Whether the `doc_string` begins like ours but cannot be read.
    """

    doc_string: StoredHierarchy | None
    tag: str | None
    module: str | None
    kind: str | None
    damaged: bool = False


def read_node_stores(node: onnx.NodeProto) -> NodeStores:
    """Read the two stores in a node."""
    # Protobuf returns text that is not UTF-8 as bytes.
    properties = {
        entry.key: entry.value for entry in node.metadata_props if _is_ours(entry.key) and isinstance(entry.value, str)
    }
    doc_string: object = node.doc_string
    text = doc_string if isinstance(doc_string, str) else ""
    stored = read_doc_string(text)
    return NodeStores(
        doc_string=stored,
        tag=properties.get(TAG_KEY),
        module=properties.get(MODULE_KEY),
        kind=properties.get(KIND_KEY),
        damaged=stored is None and text.startswith('{"hierarchy_'),
    )


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX)


def has_node_properties(model: onnx.ModelProto) -> bool:
    """Whether nodes of this model can have `metadata_props`: older IR versions lack the field."""
    return model.ir_version >= _NODE_METADATA_IR_VERSION


def read_sidecar(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> HierarchyDocument:
    """Read the sidecar at `path`.

    Raises:
        FileFormatError: It cannot be read, is too large, or is not a hierarchy document.
    """
    try:
        size = path.stat().st_size
        if size > limits.sidecar_bytes:
            raise FileFormatError(
                f"{path} has {size} bytes, more than the limit of {limits.sidecar_bytes} for a sidecar"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        # Not an OSError: a path with a NUL byte.
        problem = getattr(error, "strerror", None) or error
        raise FileFormatError(f"{printable(str(path))} cannot be read: {problem}") from error
    return decode_document(data, str(path))


def named_graph(sidecar: Path) -> str | None:
    """The hash of the graph that a sidecar describes, from its first lines; None where they do not name one."""
    try:
        with sidecar.open("rb") as file:
            found = _GRAPH_HASH.search(file.read(_HEAD_BYTES))
    except OSError:
        return None
    return found[1].decode() if found else None


@overload
def strip_hierarchy(model: onnx.ModelProto) -> onnx.ModelProto: ...
@overload
def strip_hierarchy(model: ir.Model) -> ir.Model: ...
def strip_hierarchy(model: ir.Model | onnx.ModelProto) -> ir.Model | onnx.ModelProto:
    """A copy of the model without our metadata; everything else is unchanged.

    Args:
        model: An `onnx_ir.Model` or an `onnx.ModelProto`.

    Returns:
        A copy of the same type. An `onnx_ir.Model` shares its weights with the copy; a proto does not.
    """
    if isinstance(model, ir.Model):
        copy = model.clone()
        remove_hierarchy(copy)
        return copy
    if isinstance(model, onnx.ModelProto):
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        remove_hierarchy(copied)
        return copied
    raise InputError(
        f"strip_hierarchy takes an onnx_ir.Model or an onnx.ModelProto, not {type(model).__name__}: "
        "load the file first, e.g. with onnx.load"
    )


def remove_hierarchy(model: ir.Model | onnx.ModelProto) -> None:
    """Remove our metadata from a model, in place."""
    _remove_ours(model.metadata_props)
    for _, node in _nodes(model):
        stored = read_doc_string(node.doc_string)
        _remove_ours(node.metadata_props, namespace=stored is not None and stored.namespace)
        if stored is None:
            continue
        if stored.doc_string is None and isinstance(node, onnx.NodeProto):
            node.ClearField("doc_string")
        else:
            node.doc_string = stored.doc_string


def remove_source_references(model: ir.Model | onnx.ModelProto) -> None:
    """Remove, in place, all metadata that names source files of the exporting machine, also metadata of torch."""
    if isinstance(model, onnx.ModelProto):
        for _, proto in proto_nodes_with_ids(model):
            if _SOURCE_REFERENCE.search(proto.doc_string):
                proto.ClearField("doc_string")
        return
    graphs: list[dict[str, str]] = [model.metadata_props, model.graph.metadata_props]
    graphs.extend(function.metadata_props for function in model.functions.values())
    for _, node in nodes_with_ids(model):
        graphs.append(node.metadata_props)
        graphs.extend(value.metadata_props for value in node.outputs)
        if node.doc_string and _SOURCE_REFERENCE.search(node.doc_string):
            node.doc_string = None
    for properties in graphs:
        for key in [key for key, text in properties.items() if _SOURCE_REFERENCE.search(text)]:
            del properties[key]


def source_line(node: onnx.NodeProto) -> str:
    """File and line of the code behind a node; empty where torch did not record it.

    That is the innermost frame outside of torch, or the innermost of all.
    """
    text = next((entry.value for entry in node.metadata_props if entry.key == _STACK_TRACE_KEY), "")
    # Text that is not UTF-8 is bytes.
    frames: list[tuple[str, str]] = _FRAME.findall(text) if isinstance(text, str) else []
    own = [frame for frame in frames if not _OF_TORCH.search(frame[0])]
    return ":".join((own or frames)[-1]) if frames else ""
