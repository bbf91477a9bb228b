"""The cost of a graph without running it: arithmetic, weights and memory traffic of each node, from its shapes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx

from modelexport.graph import proto_subgraphs_of
from modelexport.ort import type_inference
from modelexport.profiling.static_cost.operator_costs import PARTIAL_READS, VIEWS, cost_of
from modelexport.profiling.static_cost.operator_formulas import NO_WORK, NodeShapes, UnknownShapeError, Work
from modelexport.profiling.static_cost.tensor_shapes import UNKNOWN, Axes, Tensor

NO_FORMULA = "no formula for this operator"
NO_SHAPE = "a shape is unknown"
TOO_MANY_FUNCTIONS = "too many functions with different shapes, or too deeply nested"
# What one node can cost; more is a file that lies about its shapes.
_MOST_OPERATIONS = 2**126
# Bodies of functions are counted once for each combination of input shapes.
_MOST_BODIES = 256
# Each time, all functions are sent to shape inference: this many bytes in all.
_MOST_BODY_BYTES = 2**28
# Functions that call functions; each takes three levels of Python's stack.
_MOST_DEPTH = 64
# Initializers of these types are shapes, axes, indices and masks, not parameters.
_CONSTANT_TYPES = frozenset(
    {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL, onnx.TensorProto.STRING}
)

Infer = Callable[[onnx.ModelProto], onnx.GraphProto | None]
Scope = ChainMap[str, Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCost:
    """The cost of a node in one run of the model.

    Attributes:
        id: The id of the node.
        op: Its operator.
        work: Its arithmetic; zero if it could not be counted.
        output_bytes: The size of its outputs.
        traffic: The bytes of its inputs and outputs.
        weights: The parameters that it reads, each with its elements and bytes: initializers but for those of integer
            types that shapes and indices have.
        uncounted: The number of nodes that could not be counted by operator and reason: itself, or nodes in the body of
            the function that it calls.
    """

    id: str
    op: str
    work: Work = NO_WORK
    output_bytes: int = 0
    traffic: int = 0
    weights: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    uncounted: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    def times(self, number: int) -> NodeCost:
        """The cost in a loop of this many iterations."""
        if number == 1:
            return self
        work = Work(self.work.macs * number, self.work.other * number)
        return dataclasses.replace(
            self, work=work, output_bytes=self.output_bytes * number, traffic=self.traffic * number
        )


@dataclasses.dataclass(frozen=True)
class GraphCost:
    """The costs of the nodes of a graph that run, and what the user should know of them."""

    nodes: tuple[NodeCost, ...]
    notes: tuple[str, ...]


def graph_cost(model: onnx.ModelProto, nodes: Sequence[tuple[str, onnx.NodeProto]], axes: Axes) -> GraphCost:
    """Count every node of a model.

    Of an If, the branch with the most operations counts. The nodes in a Loop count as often as its constant trip count
    says, once without one; those in a Scan once for each element of the sequence. A node that calls a local function
    costs what the function's body costs with the shapes of that call.

    Args:
        model: The model; the content of its weights is not needed.
        nodes: The result of `proto_nodes_with_ids`.
        axes: The sizes of dynamic axes, checked.
    """
    with type_inference(model.ByteSize(), declared=True) as infer:
        counter = _Counter(model, axes, infer)
        ids = (node_id for node_id, _ in nodes)
        found = counter.count(model.graph, counter.inferred(model), Scope(), ids, "")
    return GraphCost(tuple(found), tuple(counter.notes))


class _Counter:
    def __init__(self, model: onnx.ModelProto, axes: Axes, infer: Infer) -> None:
        self._model = model
        self._axes = axes
        self._infer = infer
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._bodies: dict[object, NodeCost] = {}
        self._function_bytes = sum(function.ByteSize() for function in model.functions)
        self._depth = 0
        self.notes: dict[str, None] = {}

    def inferred(self, model: onnx.ModelProto) -> onnx.GraphProto | None:
        """The inferred types of a model, if it does not declare all of them."""
        if _declares_everything(model.graph, self._axes):
            return None
        fixed = onnx.ModelProto()
        fixed.CopyFrom(model)
        self._axes.fix(fixed.graph)
        found = self._infer(fixed)
        if found is None:
            self.notes["shape inference failed: only shapes that the file declares are known"] = None
        return found

    def count(
        self, graph: onnx.GraphProto, inferred: onnx.GraphProto | None, outer: Scope, ids: Iterator[str], prefix: str
    ) -> list[NodeCost]:
        """The costs of the nodes of a graph and of its subgraphs; `ids` has theirs in the same order."""
        scope = outer.new_child(self._axes.tensors(graph, inferred, prefix))
        # In the order of the nodes that own subgraphs.
        owning = iter(inferred.node if inferred is not None else ())
        constants = functools.cache(lambda: _constants(graph))
        found: list[NodeCost] = []
        for node in graph.node:
            node_id = next(ids)
            subgraphs = list(proto_subgraphs_of(node))
            function = self._functions.get((node.domain, node.op_type, node.overload))
            if subgraphs:
                known = dict(proto_subgraphs_of(next(owning, onnx.NodeProto())))
                inside = [
                    self.count(inner, known.get(name), scope, ids, f"{node_id}/{name}/") for name, inner in subgraphs
                ]
                found.append(NodeCost(node_id, _operator(node)))
                found += self._repeated(node, inside, scope, constants)
            elif function is not None:
                inputs = [scope.get(name, UNKNOWN) for name in node.input]
                body = self._body(function, node, inputs)
                found.append(dataclasses.replace(body, id=node_id, op=_operator(node), weights=_weights(inputs)))
            else:
                found.append(_node_cost(node_id, node, scope))
        return found

    def _repeated(
        self,
        node: onnx.NodeProto,
        inside: list[list[NodeCost]],
        scope: Scope,
        constants: Callable[[], Mapping[str, int]],
    ) -> list[NodeCost]:
        """The nodes of a control-flow operator's subgraphs, as often as they run."""
        if len(inside) > 1:
            self.notes["of each If, the branch with the most operations counts"] = None
            return max(inside, key=lambda branch: sum(cost.work.operations for cost in branch))
        number = _iterations(node, scope, constants)
        if number is None:
            number = 1
            self.notes[f"{_operator(node)}: the number of iterations is not known; one counts"] = None
        return [cost.times(number) for branch in inside for cost in branch]

    def _body(self, function: onnx.FunctionProto, call: onnx.NodeProto, inputs: list[Tensor]) -> NodeCost:
        """The cost of a function's body for the shapes of a call."""
        attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in call.attribute))
        types = tuple((tensor.shape, tensor.element_type) for tensor in inputs)
        key = (function.domain, function.name, function.overload, attributes, types)
        if key not in self._bodies:
            most = min(_MOST_BODIES, _MOST_BODY_BYTES // max(self._function_bytes, 1) + 1)
            if len(self._bodies) >= most or self._depth == _MOST_DEPTH:
                return NodeCost("", "", uncounted={(_operator(call), TOO_MANY_FUNCTIONS): 1})
            self._depth += 1
            self._bodies[key] = _total(self._body_costs(function, call, inputs))
            self._depth -= 1
        return self._bodies[key]

    def _body_costs(self, function: onnx.FunctionProto, call: onnx.NodeProto, inputs: list[Tensor]) -> list[NodeCost]:
        """Count the body as a graph whose inputs have the types of the call's inputs."""
        body = onnx.ModelProto(ir_version=10, opset_import=function.opset_import, functions=self._model.functions)
        graph = body.graph
        graph.name = function.name
        given = {attribute.name: attribute for attribute in (*function.attribute_proto, *call.attribute)}
        for node in function.node:
            _set_attributes(graph.node.add(), node, given)
        for name, tensor in zip(function.input, inputs, strict=False):
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.element_type, tensor.shape))
        graph.value_info.extend(function.value_info)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
        return self.count(graph, self.inferred(body), Scope(), itertools.repeat(""), "")


def _declares_everything(graph: onnx.GraphProto, axes: Axes) -> bool:
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        known = axes.tensors(current)
        for node in current.node:
            if any(name and known.get(name, UNKNOWN).size is None for name in node.output):
                return False
            waiting += [inner for _, inner in proto_subgraphs_of(node)]
    return True


def _node_cost(node_id: str, node: onnx.NodeProto, scope: Scope) -> NodeCost:
    inputs = [scope.get(name, UNKNOWN) for name in node.input]
    outputs = [scope.get(name, UNKNOWN) for name in node.output if name]
    formula = cost_of(node)
    work, reason = NO_WORK, NO_FORMULA if formula is None else ""
    if formula is not None:
        try:
            work = formula(
                NodeShapes(node, [t.shape for t in inputs], [scope.get(n, UNKNOWN).shape for n in node.output])
            )
        except (UnknownShapeError, TypeError, ValueError, ArithmeticError):
            reason = NO_SHAPE
    if work.operations > _MOST_OPERATIONS:
        work, reason = NO_WORK, NO_SHAPE
    written = sum(tensor.size or 0 for tensor in outputs)
    read = [tensor.size or 0 for tensor in inputs]
    if node.op_type in PARTIAL_READS and read:
        read[0] = min(read[0], written)
    if node.op_type in VIEWS:
        written, read = 0, []
    operator = _operator(node)
    return NodeCost(
        id=node_id,
        op=operator,
        work=work,
        output_bytes=written,
        traffic=written + sum(read),
        weights=_weights(inputs),
        uncounted={(operator, reason): 1} if reason else {},
    )


def _weights(inputs: Sequence[Tensor]) -> dict[str, tuple[int, int]]:
    return {
        tensor.weight: (math.prod(tensor.shape), tensor.size or 0)
        for tensor in inputs
        if tensor.weight and tensor.shape is not None and tensor.element_type not in _CONSTANT_TYPES
    }


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _total(costs: Sequence[NodeCost]) -> NodeCost:
    return NodeCost(
        id="",
        op="",
        work=Work(sum(cost.work.macs for cost in costs), sum(cost.work.other for cost in costs)),
        output_bytes=sum(cost.output_bytes for cost in costs),
        traffic=sum(cost.traffic for cost in costs),
        uncounted=count_uncounted(costs),
    )


def count_uncounted(costs: Iterable[NodeCost]) -> Counter[tuple[str, str]]:
    """The number of nodes that could not be counted, by operator and reason."""
    found: Counter[tuple[str, str]] = Counter()
    for cost in costs:
        if cost.uncounted:
            found.update(cost.uncounted)
    return found


def _iterations(node: onnx.NodeProto, scope: Scope, constants: Callable[[], Mapping[str, int]]) -> int | None:
    """How often the body of a Loop or Scan runs; None if that is not known."""
    if node.op_type == "Loop" and node.input and node.input[0]:
        return constants().get(node.input[0])
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
    sequences = attributes.get("num_scan_inputs", 0)
    if node.op_type != "Scan" or not isinstance(sequences, int) or not 1 <= sequences <= len(node.input):
        return None
    shape = scope.get(node.input[-sequences], UNKNOWN).shape
    axis = (attributes.get("scan_input_axes") or [0])[0]
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _constants(graph: onnx.GraphProto) -> dict[str, int]:
    """The integers that a graph has as initializers and Constant nodes, by name."""
    tensors = {weight.name: weight for weight in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    found = {}
    for name, tensor in tensors.items():
        if (
            tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
            and math.prod(tensor.dims) == 1
            and tensor.data_location != onnx.TensorProto.EXTERNAL
        ):
            with contextlib.suppress(TypeError, ValueError):
                found[name] = max(int(onnx.numpy_helper.to_array(tensor).item()), 0)
    return found


def _set_attributes(target: onnx.NodeProto, node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> None:
    """Copy a node of a function's body with the attributes of a call in place of references to them."""
    target.CopyFrom(node)
    del target.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copied = target.attribute.add()
            copied.CopyFrom(attribute)
            if attribute.HasField("g"):
                del copied.g.node[:]
                for inner in attribute.g.node:
                    _set_attributes(copied.g.node.add(), inner, given)
        elif attribute.ref_attr_name in given:
            copied = target.attribute.add()
            copied.CopyFrom(given[attribute.ref_attr_name])
            copied.name = attribute.name
