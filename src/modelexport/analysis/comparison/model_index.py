"""The outline of a model file: its nodes, who owns them and which value flows where, as plain numbers.

Everything is a list indexed by the number of a node or of a value, so that walks over hundreds of thousands of nodes
touch no protobuf object twice.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto

from modelexport.errors import FileFormatError
from modelexport.graph import SMALL_TENSOR_BYTES
from modelexport.hierarchy import HierarchyDocument
from modelexport.storage import ModelFile, recover_document

# In place of a value where an optional input or output is left out.
ABSENT = -1
# Types of constants that say what a graph does: axes, shapes, indices, switches. Other weights are trained.
_STRUCTURAL_TYPES = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING})

Key = tuple[object, ...]


@dataclasses.dataclass
class Outline:
    """The nodes and values of one file, by number.

    Attributes:
        file: What was read.
        document: The hierarchy, from the sidecar or from what torch left in the nodes; None for our own tags alone.
        origin: Where the owners come from.
        identities: The node's identity in the file.
        operations: Domain, operation and overload.
        attributes: Name and content of each attribute but for bodies, sorted.
        owners: The module call that owns the node, None where the file does not say.
        places: Which kind of graph the node is in: empty for the main graph, else the way of body attributes or the
            function.
        inputs: The values a node takes, `ABSENT` for those left out.
        outputs: The values a node makes.
        producers: The node that makes a value, or -1.
        slots: Which of its producer's outputs a value is.
        leaves: For values that no node makes, what they are.
        names: The name of a value in the file.
        tensors: The weights, by value.
        types: Type and shape of values as the file has them, by value.
        ends: At which positions a value leaves its graph, by value.
        graph_inputs: The values that the model takes.
        graph_outputs: The values that the model gives.
        order: The nodes, those that make a value before those that take it.
        readers: Who takes what a node makes: the node, which of its inputs, and which of the maker's outputs.
    """

    file: ModelFile
    document: HierarchyDocument | None = None
    origin: str = "none"
    identities: list[str] = dataclasses.field(default_factory=list)
    operations: list[Key] = dataclasses.field(default_factory=list)
    attributes: list[tuple[tuple[str, Key], ...]] = dataclasses.field(default_factory=list)
    owners: list[str | None] = dataclasses.field(default_factory=list)
    places: list[str] = dataclasses.field(default_factory=list)
    inputs: list[list[int]] = dataclasses.field(default_factory=list)
    outputs: list[list[int]] = dataclasses.field(default_factory=list)
    producers: list[int] = dataclasses.field(default_factory=list)
    slots: list[int] = dataclasses.field(default_factory=list)
    leaves: dict[int, Key] = dataclasses.field(default_factory=dict)
    names: list[str] = dataclasses.field(default_factory=list)
    tensors: dict[int, TensorProto] = dataclasses.field(default_factory=dict)
    types: dict[int, bytes] = dataclasses.field(default_factory=dict)
    ends: dict[int, Key] = dataclasses.field(default_factory=dict)
    graph_inputs: list[int] = dataclasses.field(default_factory=list)
    graph_outputs: list[int] = dataclasses.field(default_factory=list)
    order: list[int] = dataclasses.field(default_factory=list)
    readers: list[list[tuple[int, int, int]]] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.identities)

    def label(self, node: int) -> str:
        """The operation as people write it."""
        domain, operation, _ = self.operations[node]
        return f"{domain}::{operation}" if domain else f"{operation}"

    def tensor_name(self, node: int) -> str | None:
        """The name of the first tensor that a node makes."""
        return next((self.names[value] for value in self.outputs[node] if value != ABSENT), None)


def outline(file: ModelFile) -> Outline:
    """The outline of a file that was read.

    Raises:
        FileFormatError: A constant's content and its shape contradict each other.
    """
    made = Outline(file)
    try:
        _Walk(made).run()
    except (ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f"{file.path} has a tensor that cannot be read: {error}") from error
    made.owners, made.document, made.origin = _hierarchy(file)
    made.readers = [[] for _ in made.identities]
    for node, values in enumerate(made.inputs):
        for slot, value in enumerate(values):
            producer = made.producers[value] if value != ABSENT else ABSENT
            if producer >= 0:
                made.readers[producer].append((node, slot, made.slots[value]))
    made.order = _sorted_nodes(made)
    return made


def _hierarchy(file: ModelFile) -> tuple[list[str | None], HierarchyDocument | None, str]:
    """The call that owns each node, the document that says so if there is one, and where that comes from."""
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
    # What was reasoned from neighbours is reasoned here with what both models know.
    said = {record.id: record.module for record in found.document.nodes if record.kind != "inferred"}
    return [said.get(identity) for identity, _ in file.nodes], found.document, found.origin


def _sorted_nodes(made: Outline) -> list[int]:
    """The nodes with those that make a value before those that take it. Files have them so, nearly always."""
    producers, inputs = made.producers, made.inputs
    if all(v == ABSENT or producers[v] < node for node, values in enumerate(inputs) for v in values):
        return list(range(len(inputs)))
    waiting = [sum(v != ABSENT and producers[v] >= 0 for v in values) for values in inputs]
    # Kept in the order of the file as far as that goes.
    ready = [node for node in reversed(range(len(inputs))) if not waiting[node]]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for reader, _, _ in made.readers[node]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    # A circle through bodies or repeated names leaves some over: they come last, as they stand in the file.
    seen = set(order)
    return order + [node for node in range(len(inputs)) if node not in seen]


@dataclasses.dataclass
class _Scope:
    """A graph that is being walked: its nodes, the names known in it, and the scopes around."""

    nodes: Iterator[onnx.NodeProto]
    names: tuple[dict[str, int], ...]
    place: str


class _Walk:
    """Numbers the values of every graph, in the order of `proto_nodes_with_ids`."""

    def __init__(self, made: Outline) -> None:
        self._made = made
        self._opsets = {opset.domain: opset.version for opset in made.file.proto.opset_import}

    def run(self) -> None:
        made, proto = self._made, self._made.file.proto
        made.identities.extend(identity for identity, _ in made.file.nodes)
        main = self._opened(proto.graph, (), "")
        made.graph_inputs = [v for v in (main.names[0][i.name] for i in proto.graph.input) if v not in made.tensors]
        made.graph_outputs = [self._value_of(main.names, output.name) for output in proto.graph.output]
        self._follow(main)
        for function in proto.functions:
            names: dict[str, int] = {}
            for position, name in enumerate(function.input):
                names[name] = self._value(name, ("argument", position))
            place = f"function {function.domain}::{function.name}:{function.overload}"
            self._register(names, function.node, function.value_info)
            self._end((names,), function.output)
            self._follow(_Scope(iter(function.node), (names,), place))

    def _follow(self, top: _Scope) -> None:
        stack = [top]
        while stack:
            scope = stack[-1]
            node = next(scope.nodes, None)
            if node is None:
                stack.pop()
                continue
            bodies = self._enter(node, scope)
            stack.extend(self._opened(body, scope.names, place) for place, body in reversed(bodies))

    def _enter(self, node: onnx.NodeProto, scope: _Scope) -> list[tuple[str, onnx.GraphProto]]:
        made, names = self._made, scope.names
        number = len(made.inputs)
        made.operations.append(("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload))
        made.places.append(scope.place)
        inputs = [self._value_of(names, name) for name in node.input]
        while inputs and inputs[-1] == ABSENT:
            inputs.pop()
        made.inputs.append(inputs)
        outputs = [names[0][name] if name else ABSENT for name in node.output]
        while outputs and outputs[-1] == ABSENT:
            outputs.pop()
        made.outputs.append(outputs)
        for slot, value in enumerate(outputs):
            if value != ABSENT:
                made.producers[value], made.slots[value] = number, slot
        if not node.attribute:
            made.attributes.append(())
            return []
        content = {a.name: _attribute_content(a) for a in node.attribute}
        # One that is written out as what it is without being written says nothing.
        for name, default in self._defaults(node.domain, node.op_type).items():
            if content.get(name) == default:
                del content[name]
        made.attributes.append(tuple(sorted(content.items(), key=lambda named: named[0])))
        return [
            (f"{scope.place}/{attribute.name}", body)
            for attribute in node.attribute
            for body in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
        ]

    def _defaults(self, domain: str, operation: str) -> dict[str, Key]:
        return _attribute_defaults(domain, operation, self._opsets.get(domain, 0))

    def _opened(self, graph: onnx.GraphProto, around: tuple[dict[str, int], ...], place: str) -> _Scope:
        """The scope of a graph, with all its names: what is read may be made further below."""
        names: dict[str, int] = {}
        made = self._made
        for position, item in enumerate(graph.input):
            names[item.name] = self._value(item.name, ("argument", position))
        for tensor in graph.initializer:
            value = names[tensor.name] = self._value(tensor.name, ("weight", *tensor_content(tensor)))
            made.tensors[value] = tensor
        for sparse in graph.sparse_initializer:
            values = sparse.values
            value = names[values.name] = self._value(values.name, ("sparse weight", values.data_type, *sparse.dims))
            made.tensors[value] = values
        self._register(names, graph.node, (*graph.value_info, *graph.input, *graph.output))
        scopes = (names, *around)
        self._end(scopes, [output.name for output in graph.output])
        return _Scope(iter(graph.node), scopes, place)

    def _register(
        self, names: dict[str, int], nodes: Iterable[onnx.NodeProto], types: Iterable[onnx.ValueInfoProto]
    ) -> None:
        made = self._made
        for node in nodes:
            for name in node.output:
                if name:
                    names[name] = len(made.producers)
                    made.names.append(name)
                    made.producers.append(-1)
                    made.slots.append(0)
        for item in types:
            found = names.get(item.name)
            if found is not None and item.HasField("type"):
                made.types[found] = item.type.SerializeToString(deterministic=True)

    def _end(self, names: tuple[dict[str, int], ...], outputs: Sequence[str]) -> None:
        for position, name in enumerate(outputs):
            value = self._value_of(names, name)
            if value != ABSENT:
                self._made.ends[value] = (*self._made.ends.get(value, ()), position)

    def _value(self, name: str, leaf: Key) -> int:
        made = self._made
        value = len(made.producers)
        made.names.append(name)
        made.producers.append(-1)
        made.slots.append(0)
        made.leaves[value] = leaf
        return value

    def _value_of(self, names: tuple[dict[str, int], ...], name: str) -> int:
        if not name:
            return ABSENT
        for scope in names:
            value = scope.get(name)
            if value is not None:
                return value
        # Nobody makes it: the file is not valid, and can be compared all the same.
        return names[-1].setdefault(name, self._value(name, ("unknown",)))


def tensor_content(tensor: TensorProto) -> Key:
    """What of a weight is part of the structure: type, shape, and what it says where that is axes or indices."""
    shape = (tensor.data_type, tuple(tensor.dims))
    if tensor.data_type not in _STRUCTURAL_TYPES or not is_small(tensor):
        return shape
    return (*shape, small_content(tensor))


def tensor_bytes(tensor: TensorProto) -> int:
    """How many bytes the shape and type ask for; what the file has of strings, whose sizes differ."""
    bits = _bits(tensor.data_type)
    size: int = tensor.ByteSize() if bits is None else -(-math.prod(tensor.dims) * bits // 8)
    return size


@functools.cache
def _bits(data_type: int) -> int | None:
    try:
        return ir.DataType(data_type).bitwidth
    except (ValueError, TypeError):
        return None


def is_small(tensor: TensorProto) -> bool:
    """Whether the content is in the file and of a size that counts as a constant."""
    return tensor.data_location != TensorProto.EXTERNAL and tensor_bytes(tensor) <= SMALL_TENSOR_BYTES


def small_content(tensor: TensorProto) -> object:
    """The content of a small tensor, in one form however it is written."""
    if tensor.data_type == TensorProto.STRING:
        return tuple(tensor.string_data)
    if tensor.raw_data:
        return tensor.raw_data
    try:
        return onnx.numpy_helper.to_array(tensor).tobytes()
    except Exception:  # noqa: BLE001  onnx raises whatever it meets where content and shape do not fit
        return tensor.SerializeToString(deterministic=True)


@functools.lru_cache(4096)
def _attribute_defaults(domain: str, operation: str, version: int) -> dict[str, Key]:
    """What the operator set says of attributes that are not written, empty for operators that it does not know."""
    try:
        schema = onnx.defs.get_schema(operation, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: _attribute_content(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }


def _attribute_content(attribute: AttributeProto) -> Key:
    """An attribute but for its bodies and for names inside of it, to be compared with others of its name."""
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
        return (kind, *_constant(attribute.t))
    if kind in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return (kind, len(attribute.graphs))
    return (kind, hashlib.blake2b(attribute.SerializeToString(deterministic=True)).digest())


def _constant(tensor: TensorProto) -> Key:
    shape = (tensor.data_type, tuple(tensor.dims))
    if tensor.data_location == TensorProto.EXTERNAL:
        return shape
    if is_small(tensor):
        return (*shape, repr(small_content(tensor)))
    return (*shape, hashlib.blake2b(tensor.raw_data or tensor.SerializeToString(deterministic=True)).hexdigest())
