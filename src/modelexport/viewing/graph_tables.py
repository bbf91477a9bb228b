"""The tables of a page that come from the graph: graphs, nodes and tensors, subgraphs and local functions included."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto

from modelexport.graph import proto_subgraphs_of
from modelexport.hierarchy import HierarchyDocument, NodeRecord
from modelexport.viewing.page_data import KINDS, NONE, Graph, Nodes, StringTable, Tensors, Text
from modelexport.viewing.tensor_texts import attribute_text, declared_type, shape_text, text_of, type_name

_NODE, _INPUT, _WEIGHT = range(3)
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_SUBGRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
# The names that a graph sees, and the prefix of their ids.
Scope = dict[str, int]
Types = dict[str, tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class GraphTables:
    """The tables.

    Attributes:
        graphs: The main graph, then subgraphs and functions.
        nodes: The nodes, in the order of the document.
        tensors: The tensors.
        numbers: The tensors by id, as in the document.
        initializers: The weights, by tensor.
    """

    graphs: list[Graph]
    nodes: Nodes
    tensors: Tensors
    numbers: dict[str, int]
    initializers: dict[int, TensorProto]


def read_tables(
    model: onnx.ModelProto, document: HierarchyDocument, strings: StringTable, sources: Mapping[str, str]
) -> GraphTables:
    """Read the tables of a model.

    Args:
        model: The model; the content of its weights is not needed.
        document: Its hierarchy.
        strings: Where texts are added.
        sources: The source lines of nodes, by id.
    """
    reader = _Reader(document, strings, sources)
    reader.read(model)
    return GraphTables(reader.graphs, reader.nodes, reader.tensors, reader.numbers, reader.initializers)


class _Reader:
    """Visits nodes in the order of `proto_nodes_with_ids`, with the tensors that are in scope at each."""

    def __init__(self, document: HierarchyDocument, strings: StringTable, sources: Mapping[str, str]) -> None:
        self._records = document.nodes
        self._calls = {call.id: number for number, call in enumerate(document.calls)}
        self._strings = strings
        self._sources = sources
        self._recorded = _recorded_types(document)
        self._parameters = {tensor.id: tensor.parameter for tensor in document.tensors if tensor.parameter}
        # The graph of each local function, and the nodes that call one.
        self._functions: dict[tuple[str, str, str], int] = {}
        self._calling: dict[int, tuple[str, str, str]] = {}
        self.graphs: list[Graph] = []
        self.nodes = _empty_nodes()
        self.tensors = Tensors(name=[], dtype=[], shape=[], producer=[], source=[], parameter={})
        self.numbers: dict[str, int] = {}
        self.initializers: dict[int, TensorProto] = {}

    def read(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name, f.overload): NONE for f in model.functions}
        self._read_graph(model.graph, [], "", NONE, "")
        for function in model.functions:
            self._functions[function.domain, function.name, function.overload] = len(self.graphs)
            self._read_function(function)
        self.nodes.function.update((node, self._functions[called]) for node, called in self._calling.items())

    def _read_graph(self, graph: onnx.GraphProto, scopes: list[Scope], prefix: str, owner: int, attribute: str) -> None:
        number = len(self.graphs)
        types = _declared((*graph.value_info, *graph.output, *graph.input))
        scope: Scope = {}
        for weight in graph.initializer:
            types[text_of(weight.name)] = type_name(weight.data_type), shape_text(weight.dims)
            self.initializers[self._add_tensor(weight.name, scope, types, prefix, _WEIGHT)] = weight
        for sparse in graph.sparse_initializer:
            types[text_of(sparse.values.name)] = type_name(sparse.values.data_type), shape_text(sparse.dims)
            self._add_tensor(sparse.values.name, scope, types, prefix, _WEIGHT)
        inputs = [
            self._add_tensor(value.name, scope, types, prefix, _INPUT)
            for value in graph.input
            if text_of(value.name) not in scope
        ]
        outputs: list[int] = []
        name = text_of(graph.name)
        self.graphs.append(Graph(name=name, owner=owner, inputs=inputs, outputs=outputs, attribute=attribute))
        self._read_nodes(graph.node, [*scopes, scope], types, prefix, number)
        outputs += [_look_up(value.name, [*scopes, scope]) for value in graph.output]

    def _read_function(self, function: onnx.FunctionProto) -> None:
        number = len(self.graphs)
        label = "::".join(text_of(part) for part in (function.domain, function.name, function.overload) if part)
        types = _declared(function.value_info)
        scope: Scope = {}
        prefix = f"{label}/"
        inputs = [self._add_tensor(name, scope, types, prefix, _INPUT) for name in function.input]
        outputs: list[int] = []
        self.graphs.append(Graph(name=label, owner=NONE, inputs=inputs, outputs=outputs, function=label))
        self._read_nodes(function.node, [scope], types, prefix, number)
        outputs += [_look_up(name, [scope]) for name in function.output]

    def _add_tensor(self, name: str, scope: Scope, types: Types, prefix: str, source: int, producer: int = NONE) -> int:
        tensors, number = self.tensors, len(self.tensors.name)
        text = text_of(name)
        tensor_id = prefix + text
        dtype, shape = types.get(text) or self._recorded.get(tensor_id) or ("", "")
        tensors.name.append(self._strings.add(text))
        tensors.dtype.append(self._strings.add(dtype))
        tensors.shape.append(self._strings.add(shape))
        tensors.producer.append(producer)
        tensors.source.append(source)
        parameter = self._parameters.get(tensor_id)
        if parameter is not None:
            tensors.parameter[number] = self._strings.add(parameter)
        scope.setdefault(text, number)
        self.numbers.setdefault(tensor_id, number)
        return number

    def _read_nodes(
        self, nodes: Iterable[onnx.NodeProto], scopes: list[Scope], types: Types, prefix: str, graph: int
    ) -> None:
        # The outputs of all nodes are added before any node is visited: the nodes may be unsorted.
        found = [
            (node, [self._add_tensor(n, scopes[-1], types, prefix, _NODE) if n else NONE for n in node.output])
            for node in nodes
        ]
        for node, outputs in found:
            number = len(self.nodes.id)
            for name, tensor in zip(node.output, outputs, strict=True):
                if tensor != NONE:
                    self.tensors.producer[tensor] = number
                    # In an invalid file several nodes may produce one name: the nodes that follow consume the latest.
                    scopes[-1][text_of(name)] = tensor
            record = self._records[number]
            self._add_node(node, record, graph)
            self.nodes.inputs.append([_look_up(name, scopes) for name in node.input])
            self.nodes.outputs.append(outputs)
            for attribute, inner in proto_subgraphs_of(node):
                self._read_graph(inner, scopes, f"{record.id}/{attribute}/", number, attribute)

    def _add_node(self, node: onnx.NodeProto, record: NodeRecord, graph: int) -> None:
        nodes, add, number = self.nodes, self._strings.add, len(self.nodes.id)
        nodes.id.append(add(record.id))
        nodes.name.append(add(text_of(node.name)))
        nodes.op.append(add(text_of(node.op_type)))
        nodes.domain.append(add(text_of(node.domain)))
        nodes.graph.append(graph)
        nodes.call.append(self._calls[record.module])
        nodes.kind.append(_KIND_NUMBERS[record.kind])
        nodes.confidence.append(record.confidence)
        nodes.reason.append(add(record.reason))
        nodes.attributes.append(self._attributes(node))
        nodes.source.append(add(self._sources.get(record.id, "")))
        called = node.domain, node.op_type, node.overload
        if called in self._functions:
            self._calling[number] = called
        if record.contributors:
            nodes.contributors[number] = [self._calls[call] for call in record.contributors]
        if record.context:
            nodes.context[number] = [self._calls[call] for call in record.context]

    def _attributes(self, node: onnx.NodeProto) -> list[Text]:
        add = self._strings.add
        return [
            add(text)
            for attribute in node.attribute
            if attribute.type not in _SUBGRAPHS
            for text in (text_of(attribute.name), attribute_text(attribute))
        ]


def _declared(values: Iterable[onnx.ValueInfoProto]) -> Types:
    return {text_of(value.name): declared_type(value) for value in values}


def _look_up(name: str, scopes: Sequence[Scope]) -> int:
    text = text_of(name)
    return next((scope[text] for scope in reversed(scopes) if text in scope), NONE) if text else NONE


def _recorded_types(document: HierarchyDocument) -> Types:
    """The types of tensors that the document records with the calls they enter or leave."""
    return {
        port.tensor: (port.info.dtype, shape_text(port.info.shape))
        for call in document.calls
        for port in (*call.inputs, *call.outputs)
        if port.tensor is not None and port.info is not None
    }


def _empty_nodes() -> Nodes:
    columns: dict[str, list[object]] = {name: [] for name in Nodes.__struct_fields__}
    sparse: dict[str, dict[int, object]] = {name: {} for name in ("contributors", "context", "function")}
    return Nodes(**(columns | sparse))  # type: ignore[arg-type]  # each column is empty
