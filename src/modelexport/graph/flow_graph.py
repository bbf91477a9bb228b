"""The data flow of an ONNX model: the producer and the consumers of each tensor, across subgraphs and functions.

Read from the protobuf messages, without an intermediate representation, in time linear in the number of nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import onnx

from modelexport.graph.node_ids import proto_nodes_with_ids
from modelexport.graph.traversal import proto_subgraphs_of

NO_NODE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """The ONNX element type of a tensor and its shape: None if the rank is unknown, None for a symbolic axis."""

    element: int
    shape: tuple[int | None, ...] | None


@dataclasses.dataclass
class FlowGraph:
    """Nodes and tensors of a model, each known by its number.

    Attributes:
        node_ids: The id of each node.
        node_inputs: The input tensors of each node. The outputs of its subgraphs count as inputs of the owning node.
        node_outputs: The output tensors of each node.
        owning_nodes: For each node the node whose subgraph contains it, or `NO_NODE`.
        graph_numbers: For each node its graph: 0 is the main graph, 1 and above are subgraphs, None is a function.
        tensor_names: The name of each tensor.
        tensor_numbers: The tensors of the main graph by name.
        producers: The node that produces each tensor, or `NO_NODE` for inputs and initializers.
        consumers: The nodes that consume each tensor.
        graph_inputs: The inputs of the main graph.
        graph_outputs: The outputs of the main graph.
        initializers: The initializers of all graphs.
        subgraph_inputs: The inputs of subgraphs and functions; their producer is unknown.
        is_constant: For each tensor whether it depends on no input of the model.
        types: The types of the tensors, where known.
    """

    node_ids: list[str] = dataclasses.field(default_factory=list)
    node_inputs: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    node_outputs: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    owning_nodes: list[int] = dataclasses.field(default_factory=list)
    graph_numbers: list[int | None] = dataclasses.field(default_factory=list)
    tensor_names: list[str] = dataclasses.field(default_factory=list)
    tensor_numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    producers: list[int] = dataclasses.field(default_factory=list)
    consumers: list[list[int]] = dataclasses.field(default_factory=list)
    graph_inputs: set[int] = dataclasses.field(default_factory=set)
    graph_outputs: set[int] = dataclasses.field(default_factory=set)
    initializers: set[int] = dataclasses.field(default_factory=set)
    subgraph_inputs: set[int] = dataclasses.field(default_factory=set)
    is_constant: list[bool] = dataclasses.field(default_factory=list)
    types: dict[int, TensorType] = dataclasses.field(default_factory=dict)

    def nodes_before(self, tensors: Iterable[int]) -> set[int]:
        """The nodes that these tensors depend on."""
        found: set[int] = set()
        pending = [self.producers[tensor] for tensor in tensors]
        while pending:
            node = pending.pop()
            if node != NO_NODE and node not in found:
                found.add(node)
                pending += [self.producers[tensor] for tensor in self.node_inputs[node]]
        return found


# Called only if the file lacks the type of a tensor.
InferredTypes = Callable[[], onnx.GraphProto | None]


def read_flow_graph(model: onnx.ModelProto, inferred: InferredTypes | None = None) -> FlowGraph:
    """Read the data flow of a model.

    The nodes of a graph need not be sorted.

    Args:
        model: The model; its weights need not be loaded.
        inferred: Returns the graph's tensors with the types that shape inference finds; None uses only the types in
            the file.
    """
    flow = _FlowReader(model).read()
    _add_types(flow, model, inferred or (lambda: None))
    return flow


class _FlowReader:
    """Visits the nodes in the order of `proto_nodes_with_ids`, with the tensors that are in scope at each."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._flow = FlowGraph()
        self._subgraphs = 0
        # The nodes that own subgraphs. Their outputs are never constant.
        self._control_flow: set[int] = set()

    def read(self) -> FlowGraph:
        flow = self._flow
        flow.node_ids = [node_id for node_id, _ in proto_nodes_with_ids(self._model)]
        size = len(flow.node_ids)
        flow.node_inputs, flow.node_outputs, flow.owning_nodes = [()] * size, [()] * size, [NO_NODE] * size
        flow.graph_numbers = [None] * size
        graph = self._model.graph
        scope = flow.tensor_numbers
        for name in [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]:
            flow.initializers.add(self._add_tensor(name, scope))
        for value in graph.input:
            if value.name not in scope:
                flow.graph_inputs.add(self._add_tensor(value.name, scope))
        number = self._walk(graph.node, scope, 0, graph_number=0)
        flow.graph_outputs = {scope[value.name] for value in graph.output if value.name in scope}
        for function in self._model.functions:
            scope = {}
            for name in function.input:
                flow.subgraph_inputs.add(self._add_tensor(name, scope))
            number = self._walk(function.node, scope, number, graph_number=None)
        for node, tensors in enumerate(flow.node_inputs):
            for tensor in dict.fromkeys(tensors):
                flow.consumers[tensor].append(node)
        self._propagate_constants()
        return flow

    def _add_tensor(self, name: str, scope: dict[str, int]) -> int:
        flow = self._flow
        number = len(flow.tensor_names)
        flow.tensor_names.append(name)
        flow.producers.append(NO_NODE)
        flow.consumers.append([])
        scope.setdefault(name, number)
        return number

    def _walk(
        self, nodes: Iterable[onnx.NodeProto], scope: dict[str, int], number: int, *, graph_number: int | None
    ) -> int:
        # A stack rather than recursion: a file may nest subgraphs deeper than Python's stack.
        stack = [_Level(self._with_outputs(nodes, scope), [scope], NO_NODE, (), graph_number)]
        while stack:
            level = stack[-1]
            node, outputs = next(level.nodes, (None, ()))
            if node is None:
                stack.pop()
                self._leave(level)
                continue
            current, number = number, number + 1
            subgraphs = [graph for _, graph in proto_subgraphs_of(node)] if node.attribute else []
            if subgraphs:
                self._control_flow.add(current)
            self._add_node(node, outputs, current, level)
            inner = [self._enter(graph, current, level) for graph in subgraphs]
            stack.extend(reversed(inner))
        return number

    def _with_outputs(
        self, nodes: Iterable[onnx.NodeProto], scope: dict[str, int]
    ) -> Iterator[tuple[onnx.NodeProto, tuple[int, ...]]]:
        """Add the output tensors of all nodes of a graph before any node is visited: the nodes may be unsorted."""
        return iter([(n, tuple(self._add_tensor(name, scope) for name in n.output if name)) for n in nodes])

    def _add_node(self, node: onnx.NodeProto, outputs: tuple[int, ...], number: int, level: _Level) -> None:
        flow = self._flow
        found = [_look_up(name, level.scopes) for name in node.input if name]
        flow.node_inputs[number] = tuple(tensor for tensor in found if tensor is not None)
        flow.owning_nodes[number] = level.owning_node
        flow.graph_numbers[number] = level.graph_number
        flow.node_outputs[number] = outputs
        for tensor in outputs:
            flow.producers[tensor] = number
            # In an invalid file several nodes may produce one name: the nodes that follow consume the latest.
            level.scopes[-1][flow.tensor_names[tensor]] = tensor

    def _enter(self, graph: onnx.GraphProto, owning_node: int, outer: _Level) -> _Level:
        scope: dict[str, int] = {}
        for weight in graph.initializer:
            self._flow.initializers.add(self._add_tensor(weight.name, scope))
        for value in graph.input:
            if value.name not in scope:
                self._flow.subgraph_inputs.add(self._add_tensor(value.name, scope))
        outputs = tuple(value.name for value in graph.output)
        graph_number = None
        if outer.graph_number is not None:
            self._subgraphs += 1
            graph_number = self._subgraphs
        nodes = self._with_outputs(graph.node, scope)
        return _Level(nodes, [*outer.scopes, scope], owning_node, outputs, graph_number)

    def _leave(self, level: _Level) -> None:
        if level.owning_node == NO_NODE:
            return
        outputs = [_look_up(name, level.scopes) for name in level.outputs if name]
        self._flow.node_inputs[level.owning_node] += tuple(tensor for tensor in outputs if tensor is not None)

    def _propagate_constants(self) -> None:
        """Mark the initializers, and the outputs of nodes without subgraphs whose inputs are all constant."""
        flow = self._flow
        flow.is_constant = [tensor in flow.initializers for tensor in range(len(flow.tensor_names))]
        # How many inputs of each node are not known to be constant.
        unknown = [
            sum(not flow.is_constant[tensor] for tensor in dict.fromkeys(tensors)) for tensors in flow.node_inputs
        ]
        waiting = [node for node, count in enumerate(unknown) if not count and node not in self._control_flow]
        while waiting:
            for tensor in flow.node_outputs[waiting.pop()]:
                flow.is_constant[tensor] = True
                for consumer in flow.consumers[tensor]:
                    unknown[consumer] -= 1
                    if not unknown[consumer] and consumer not in self._control_flow:
                        waiting.append(consumer)


@dataclasses.dataclass(slots=True)
class _Level:
    """A graph that is being visited: its remaining nodes, each with its output tensors."""

    nodes: Iterator[tuple[onnx.NodeProto, tuple[int, ...]]]
    scopes: list[dict[str, int]]
    owning_node: int
    outputs: tuple[str, ...]
    graph_number: int | None


def _look_up(name: str, scopes: list[dict[str, int]]) -> int | None:
    return next((scope[name] for scope in reversed(scopes) if name in scope), None)


# --- types -----------------------------------------------------------------------------------------------------


def _add_types(flow: FlowGraph, model: onnx.ModelProto, inferred: InferredTypes) -> None:
    known = value_types(model.graph)
    produced = {flow.tensor_names[tensor] for outputs in flow.node_outputs for tensor in outputs}
    if not produced & flow.tensor_numbers.keys() <= known.keys():
        # The file's own types take precedence: inference may know less about a dynamic shape.
        found = inferred()
        known = {**(value_types(found) if found is not None else {}), **known}
    flow.types = {number: known[name] for name, number in flow.tensor_numbers.items() if name in known}


def value_types(graph: onnx.GraphProto) -> dict[str, TensorType]:
    """The tensor types that a graph declares, by name."""
    found: dict[str, TensorType] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.tensor_type
        if not kind.elem_type:
            continue
        shape = None
        if kind.HasField("shape"):
            shape = tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in kind.shape.dim)
        found[value.name] = TensorType(kind.elem_type, shape)
    for weight in graph.initializer:
        found[weight.name] = TensorType(weight.data_type, tuple(weight.dims))
    return found
