"""The data flow of a model as it lies in the file: who makes each tensor, who reads it, through bodies and functions.

Built from the protos, without an intermediate representation: everything here is one pass over the nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import onnx

from modelexport.graph.node_ids import proto_nodes_with_ids

NOBODY = -1


@dataclasses.dataclass(frozen=True, slots=True)
class TensorType:
    """Element type as ONNX numbers it, and the axes, where they are known; None for an axis without a number."""

    element: int
    shape: tuple[int | None, ...] | None


@dataclasses.dataclass
class FlowGraph:
    """Nodes and tensors by number.

    Attributes:
        ids: The nodes' identities.
        reads: For each node the tensors it reads; one that holds bodies reads what their results are.
        makes: For each node the tensors it makes.
        holders: For each node the one whose body it stands in, or `NOBODY`.
        bodies: For each node the graph it stands in: 0 is the main graph; None for a function, which has no place.
        names: For each tensor its name.
        numbers: The tensors of the main graph by name.
        makers: For each tensor the node that makes it, or `NOBODY` for an input or a weight.
        readers: For each tensor the nodes that read it.
        inputs: The tensors that are inputs of the main graph.
        results: The tensors that are outputs of the main graph.
        weights: The tensors that are initializers.
        formal: The tensors that are inputs of a body or function: who makes them is not in this graph.
        constant: For each tensor whether it needs no input of the model.
        types: For each tensor its type, where it is known.
    """

    ids: list[str] = dataclasses.field(default_factory=list)
    reads: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    makes: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    holders: list[int] = dataclasses.field(default_factory=list)
    bodies: list[int | None] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    makers: list[int] = dataclasses.field(default_factory=list)
    readers: list[list[int]] = dataclasses.field(default_factory=list)
    inputs: set[int] = dataclasses.field(default_factory=set)
    results: set[int] = dataclasses.field(default_factory=set)
    weights: set[int] = dataclasses.field(default_factory=set)
    formal: set[int] = dataclasses.field(default_factory=set)
    constant: list[bool] = dataclasses.field(default_factory=list)
    types: dict[int, TensorType] = dataclasses.field(default_factory=dict)


# Asked only where a file does not have the types of all its tensors.
InferredTypes = Callable[[], onnx.GraphProto | None]


def read_flow(model: onnx.ModelProto, inferred: InferredTypes | None = None) -> FlowGraph:
    """The data flow of a model.

    Args:
        model: The model; its weights need not be loaded.
        inferred: Gives the graph's tensors with the types that shape inference finds; None takes the file's own alone.
    """
    flow = _Reader(model).read()
    _add_types(flow, model, inferred or (lambda: None))
    return flow


class _Reader:
    """Walks the nodes in the order of `proto_nodes_with_ids`, with the tensors that are visible at each."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._flow = FlowGraph()
        self._count = 0

    def read(self) -> FlowGraph:
        flow = self._flow
        flow.ids = [identity for identity, _ in proto_nodes_with_ids(self._model)]
        size = len(flow.ids)
        flow.reads, flow.makes, flow.holders = [()] * size, [()] * size, [NOBODY] * size
        flow.bodies = [None] * size
        graph = self._model.graph
        top: dict[str, int] = {}
        for weight in [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]:
            flow.weights.add(self._tensor(weight, top, constant=True))
        for value in graph.input:
            if value.name not in top:
                flow.inputs.add(self._tensor(value.name, top))
        flow.numbers = top
        number = self._walk(graph.node, top, 0, body=0)
        flow.results = {top[value.name] for value in graph.output if value.name in top}
        for function in self._model.functions:
            scope: dict[str, int] = {}
            for name in function.input:
                flow.formal.add(self._tensor(name, scope))
            number = self._walk(function.node, scope, number, body=None)
        for node, tensors in enumerate(flow.reads):
            for tensor in dict.fromkeys(tensors):
                flow.readers[tensor].append(node)
        return flow

    def _tensor(self, name: str, scope: dict[str, int], *, maker: int = NOBODY, constant: bool = False) -> int:
        flow = self._flow
        number = len(flow.names)
        flow.names.append(name)
        flow.makers.append(maker)
        flow.readers.append([])
        flow.constant.append(constant)
        scope[name] = number
        return number

    def _walk(self, nodes: object, top: dict[str, int], number: int, *, body: int | None) -> int:
        # A stack rather than recursion: files nest as deeply as they like.
        stack: list[_Level] = [_Level(iter(nodes), [top], NOBODY, (), body)]  # type: ignore[call-overload]
        while stack:
            level = stack[-1]
            node = next(level.nodes, None)
            if node is None:
                stack.pop()
                self._close(level)
                continue
            current, number = number, number + 1
            self._enter_node(node, current, level)
            inner = [self._open(graph, current, level) for graph in _bodies(node)]
            stack.extend(reversed(inner))
        return number

    def _enter_node(self, node: onnx.NodeProto, number: int, level: _Level) -> None:
        flow = self._flow
        found = [_look_up(name, level.scopes) for name in node.input if name]
        read = [tensor for tensor in found if tensor is not None]
        has_body = any(a.HasField("g") or a.graphs for a in node.attribute)
        constant = not has_body and all(flow.constant[tensor] for tensor in read)
        flow.reads[number] = tuple(read)
        flow.holders[number] = level.holder
        flow.bodies[number] = level.body
        flow.makes[number] = tuple(
            self._tensor(name, level.scopes[-1], maker=number, constant=constant) for name in node.output if name
        )

    def _open(self, body: onnx.GraphProto, holder: int, around: _Level) -> _Level:
        scope: dict[str, int] = {}
        for weight in body.initializer:
            self._flow.weights.add(self._tensor(weight.name, scope, constant=True))
        for value in body.input:
            if value.name not in scope:
                self._flow.formal.add(self._tensor(value.name, scope))
        outputs = tuple(value.name for value in body.output)
        self._count += around.body is not None
        return _Level(
            iter(body.node), [*around.scopes, scope], holder, outputs, self._count if around.body is not None else None
        )

    def _close(self, level: _Level) -> None:
        if level.holder == NOBODY:
            return
        results = [_look_up(name, level.scopes) for name in level.outputs if name]
        own = tuple(tensor for tensor in results if tensor is not None)
        self._flow.reads[level.holder] += own


@dataclasses.dataclass(slots=True)
class _Level:
    nodes: Iterator[onnx.NodeProto]
    scopes: list[dict[str, int]]
    holder: int
    outputs: tuple[str, ...]
    body: int | None


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def _look_up(name: str, scopes: list[dict[str, int]]) -> int | None:
    return next((scope[name] for scope in reversed(scopes) if name in scope), None)


# --- types -----------------------------------------------------------------------------------------------------


def _add_types(flow: FlowGraph, model: onnx.ModelProto, inferred: InferredTypes) -> None:
    known = value_types(model.graph)
    wanted = {flow.names[tensor] for makes in flow.makes for tensor in makes} & flow.numbers.keys()
    if not wanted <= known.keys():
        # What the file says goes first: inference may know less of a dynamic shape.
        found = inferred()
        known = {**(value_types(found) if found is not None else {}), **known}
    flow.types = {number: known[name] for name, number in flow.numbers.items() if name in known}


def value_types(graph: onnx.GraphProto) -> dict[str, TensorType]:
    """The types that a graph says its tensors have."""
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
