"""An index of a model file for comparison: its nodes, their owners and the data flow, as integers.

Nodes and values are numbered, and everything known of them is in lists by these numbers. So a walk over hundreds of
thousands of nodes reads each protobuf object once.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence

import onnx
from onnx import AttributeProto, TensorProto

from modelexport.errors import FileFormatError
from modelexport.graph import SMALL_TENSOR_BYTES
from modelexport.hierarchy import HierarchyDocument
from modelexport.storage import ModelFile, content_bytes, recover_document

# The number that stands for an omitted optional input or output.
ABSENT = -1
# Constants of these types are part of the structure: axes, shapes, indices, flags. Other weights are trained.
_STRUCTURAL_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING})

Key = tuple[object, ...]


class ModelIndex:
    """The nodes and values of one file, by number.

    Attributes:
        document: The hierarchy, from the sidecar or from torch's metadata in the nodes; None if nodes have only tags.
        origin: Where the owners were read from.
        node_ids: The id of each node.
        operations: Domain, operator and overload of each node.
        attributes: The sorted attributes of each node with keys of their content; subgraphs are left out.
        owners: The module call that owns each node; None if the file does not record it.
        graph_paths: The graph of each node: empty for the main graph, else the attributes that lead to the subgraph,
            or the function.
        inputs: The values that each node consumes, `ABSENT` for omitted ones.
        outputs: The values that each node produces, `ABSENT` for omitted ones.
        producers: The node that produces each value, or -1.
        output_indexes: The position of each value among its producer's outputs.
        sources: For values without a producer: whether they are an argument or a weight, with a key of their content.
        names: The name of each value.
        tensors: The initializers, by value.
        types: The serialized types that the file records, by value.
        output_positions: The positions of a value among the outputs of its graph, by value.
        graph_inputs: The model's inputs.
        graph_outputs: The model's outputs.
        order: The nodes in topological order.
        consumers: For each node, the uses of its outputs: the consumer, its input index, and the output index.
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self._opsets = {opset.domain: opset.version for opset in file.proto.opset_import}
        self.node_ids: list[str] = []
        self.operations: list[Key] = []
        self.attributes: list[tuple[tuple[str, Key], ...]] = []
        self.graph_paths: list[str] = []
        self.inputs: list[list[int]] = []
        self.outputs: list[list[int]] = []
        self.producers: list[int] = []
        self.output_indexes: list[int] = []
        self.sources: dict[int, Key] = {}
        self.names: list[str] = []
        self.tensors: dict[int, TensorProto] = {}
        self.types: dict[int, bytes] = {}
        self.output_positions: dict[int, Key] = {}
        self.graph_inputs: list[int] = []
        self.graph_outputs: list[int] = []
        try:
            self._read_graphs()
        except (ValueError, TypeError, KeyError) as error:
            raise FileFormatError(f"{file.path} has a tensor that cannot be read: {error}") from error
        self.owners, self.document, self.origin = _hierarchy(file)
        self.consumers: list[list[tuple[int, int, int]]] = [[] for _ in self.node_ids]
        for node, values in enumerate(self.inputs):
            for slot, value in enumerate(values):
                producer = self.producers[value] if value != ABSENT else ABSENT
                if producer >= 0:
                    self.consumers[producer].append((node, slot, self.output_indexes[value]))
        self.order = _sorted_nodes(self)

    def __len__(self) -> int:
        return len(self.node_ids)

    def label(self, node: int) -> str:
        """The operator with its domain, for display."""
        domain, operation, _ = self.operations[node]
        return f"{domain}::{operation}" if domain else f"{operation}"

    def tensor_name(self, node: int) -> str | None:
        """The name of the first tensor that a node produces."""
        return next((self.names[value] for value in self.outputs[node] if value != ABSENT), None)

    def _read_graphs(self) -> None:
        proto = self.file.proto
        self.node_ids.extend(identity for identity, _ in self.file.nodes)
        main = self._open_graph(proto.graph, (), "")
        self.graph_inputs = [v for v in (main.names[0][i.name] for i in proto.graph.input) if v not in self.tensors]
        self.graph_outputs = [self._find_value(main.names, output.name) for output in proto.graph.output]
        self._index_graph(main)
        for function in proto.functions:
            names: dict[str, int] = {}
            for position, name in enumerate(function.input):
                names[name] = self._add_value(name, ("argument", position))
            graph_path = f"function {function.domain}::{function.name}:{function.overload}"
            self._add_outputs(names, function.node, function.value_info)
            self._record_outputs((names,), function.output)
            self._index_graph(_Scope(iter(function.node), (names,), graph_path))

    def _index_graph(self, top: _Scope) -> None:
        stack = [top]
        while stack:
            scope = stack[-1]
            node = next(scope.nodes, None)
            if node is None:
                stack.pop()
                continue
            subgraphs = self._index_node(node, scope)
            stack.extend(
                self._open_graph(subgraph, scope.names, graph_path) for graph_path, subgraph in reversed(subgraphs)
            )

    def _index_node(self, node: onnx.NodeProto, scope: _Scope) -> list[tuple[str, onnx.GraphProto]]:
        names = scope.names
        number = len(self.inputs)
        self.operations.append(("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload))
        self.graph_paths.append(scope.graph_path)
        inputs = [self._find_value(names, name) for name in node.input]
        while inputs and inputs[-1] == ABSENT:
            inputs.pop()
        self.inputs.append(inputs)
        outputs = [names[0][name] if name else ABSENT for name in node.output]
        while outputs and outputs[-1] == ABSENT:
            outputs.pop()
        self.outputs.append(outputs)
        for slot, value in enumerate(outputs):
            if value != ABSENT:
                self.producers[value], self.output_indexes[value] = number, slot
        if not node.attribute:
            self.attributes.append(())
            return []
        content = {a.name: _attribute_key(a) for a in node.attribute}
        # An explicit default is the same as an omitted attribute.
        defaults = _attribute_defaults(node.domain, node.op_type, self._opsets.get(node.domain, 0))
        for name, default in defaults.items():
            if content.get(name) == default:
                del content[name]
        self.attributes.append(tuple(sorted(content.items(), key=lambda named: named[0])))
        return [
            (f"{scope.graph_path}/{attribute.name}", subgraph)
            for attribute in node.attribute
            for subgraph in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
        ]

    def _open_graph(self, graph: onnx.GraphProto, around: tuple[dict[str, int], ...], graph_path: str) -> _Scope:
        """The scope of a graph, with all its names: in an unsorted file a consumer can come before its producer."""
        names: dict[str, int] = {}
        for position, item in enumerate(graph.input):
            names[item.name] = self._add_value(item.name, ("argument", position))
        for tensor in graph.initializer:
            value = names[tensor.name] = self._add_value(tensor.name, ("weight", *structural_key(tensor)))
            self.tensors[value] = tensor
        for sparse in graph.sparse_initializer:
            values = sparse.values
            value = names[values.name] = self._add_value(values.name, ("sparse weight", values.data_type, *sparse.dims))
            self.tensors[value] = values
        self._add_outputs(names, graph.node, (*graph.value_info, *graph.input, *graph.output))
        scopes = (names, *around)
        self._record_outputs(scopes, [output.name for output in graph.output])
        return _Scope(iter(graph.node), scopes, graph_path)

    def _add_outputs(
        self, names: dict[str, int], nodes: Iterable[onnx.NodeProto], types: Iterable[onnx.ValueInfoProto]
    ) -> None:
        for node in nodes:
            for name in node.output:
                if name:
                    names[name] = self._add_value(name)
        for item in types:
            found = names.get(item.name)
            if found is not None and item.HasField("type"):
                self.types[found] = item.type.SerializeToString(deterministic=True)

    def _record_outputs(self, names: tuple[dict[str, int], ...], outputs: Sequence[str]) -> None:
        for position, name in enumerate(outputs):
            value = self._find_value(names, name)
            if value != ABSENT:
                self.output_positions[value] = (*self.output_positions.get(value, ()), position)

    def _add_value(self, name: str, source: Key | None = None) -> int:
        value = len(self.producers)
        self.names.append(name)
        self.producers.append(-1)
        self.output_indexes.append(0)
        if source is not None:
            self.sources[value] = source
        return value

    def _find_value(self, names: tuple[dict[str, int], ...], name: str) -> int:
        if not name:
            return ABSENT
        for scope in names:
            value = scope.get(name)
            if value is not None:
                return value
        # No node produces it: the file is invalid, but can be compared.
        return names[-1].setdefault(name, self._add_value(name, ("unknown",)))


def _hierarchy(file: ModelFile) -> tuple[list[str | None], HierarchyDocument | None, str]:
    """The call that owns each node, the document if there is one, and where the owners were read from."""
    if file.document is not None:
        recorded = {record.id: record.module for record in file.document.nodes}
        return [recorded.get(identity) for identity, _ in file.nodes], file.document, "sidecar"
    stored = file.stored
    if stored:
        owners = [stored[identity].module if identity in stored else None for identity, _ in file.nodes]
        return owners, None, "tags"
    try:
        found = recover_document(file.proto, file.nodes, digest=file.graph_hash)
    except FileFormatError:
        return [None] * len(file.nodes), None, "none"
    # Inferred owners are left out: `NodeOwners` infers them from both models.
    recorded = {record.id: record.module for record in found.document.nodes if record.kind != "inferred"}
    return [recorded.get(identity) for identity, _ in file.nodes], found.document, found.origin


def _sorted_nodes(index: ModelIndex) -> list[int]:
    """The nodes in topological order, which is nearly always the order of the file."""
    producers, inputs = index.producers, index.inputs
    if all(v == ABSENT or producers[v] < node for node, values in enumerate(inputs) for v in values):
        return list(range(len(inputs)))
    waiting = [sum(v != ABSENT and producers[v] >= 0 for v in values) for values in inputs]
    # A stack, reversed: nodes that are ready at the same time stay in the order of the file.
    ready = [node for node in reversed(range(len(inputs))) if not waiting[node]]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for consumer, _, _ in index.consumers[node]:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                ready.append(consumer)
    # An invalid file can have a cycle. Its nodes come last, in the order of the file.
    seen = set(order)
    return order + [node for node in range(len(inputs)) if node not in seen]


@dataclasses.dataclass
class _Scope:
    """A graph that is being indexed: its remaining nodes, and the values by name of it and of the enclosing graphs."""

    nodes: Iterator[onnx.NodeProto]
    names: tuple[dict[str, int], ...]
    graph_path: str


def structural_key(tensor: TensorProto) -> Key:
    """The part of a weight that is structure: type and shape, and the content of small integers, flags and strings."""
    shape = (tensor.data_type, tuple(tensor.dims))
    if tensor.data_type not in _STRUCTURAL_TYPES or not is_small(tensor):
        return shape
    return (*shape, constant_content(tensor))


def is_small(tensor: TensorProto) -> bool:
    """Whether the content is in the model file and small enough to count as a constant."""
    return tensor.data_location != TensorProto.EXTERNAL and content_bytes(tensor) <= SMALL_TENSOR_BYTES


def constant_content(tensor: TensorProto) -> object:
    """The content of a small tensor, the same for each way in which ONNX can store it."""
    if tensor.data_type == TensorProto.STRING:
        return tuple(tensor.string_data)
    if tensor.raw_data:
        return tensor.raw_data
    try:
        return onnx.numpy_helper.to_array(tensor).tobytes()
    except Exception:  # noqa: BLE001  onnx raises various errors if content and shape do not match
        return tensor.SerializeToString(deterministic=True)


@functools.lru_cache(4096)
def _attribute_defaults(domain: str, operation: str, version: int) -> dict[str, Key]:
    """The default attributes of an operator; empty for one that the operator set does not have."""
    try:
        schema = onnx.defs.get_schema(operation, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: _attribute_key(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }


def _attribute_key(attribute: AttributeProto) -> Key:
    """A key of an attribute's content, without its subgraphs and the names inside of it."""
    kind = attribute.type
    if attribute.ref_attr_name:
        return ("reference", attribute.ref_attr_name)
    if kind == AttributeProto.INT:
        return (kind, attribute.i)
    if kind == AttributeProto.INTS:
        return (kind, *attribute.ints)
    if kind == AttributeProto.FLOAT:
        return (kind, repr(attribute.f))
    if kind == AttributeProto.FLOATS:
        return (kind, *map(repr, attribute.floats))
    if kind == AttributeProto.STRING:
        return (kind, attribute.s)
    if kind == AttributeProto.STRINGS:
        return (kind, *attribute.strings)
    if kind == AttributeProto.TENSOR:
        return (kind, *_constant_key(attribute.t))
    if kind in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return (kind, len(attribute.graphs))
    return (kind, hashlib.blake2b(attribute.SerializeToString(deterministic=True)).digest())


def _constant_key(tensor: TensorProto) -> Key:
    shape = (tensor.data_type, tuple(tensor.dims))
    if tensor.data_location == TensorProto.EXTERNAL:
        return shape
    if is_small(tensor):
        return (*shape, repr(constant_content(tensor)))
    return (*shape, hashlib.blake2b(tensor.raw_data or tensor.SerializeToString(deterministic=True)).hexdigest())
