"""No-op nodes: which nodes return an input unchanged.

There is no list of such operators (a product with one, a sum with zero, a reshape to the same shape). The nodes are run
on numbers of all magnitudes: if the output always equals one of the inputs, they are no-ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from modelexport.graph import nodes_of

# A no-op consists of a few nodes, whose constants are scalars, shapes and axes.
_MAX_NODES = 8
_MAX_CONSTANT_BYTES = 1024
_MAX_ELEMENTS = 2**22
_TRIALS = 4
# The number of different numbers in a trial, repeated in a large tensor. A prime, so that it divides no shape.
_NUMBERS = 4093
# Sizes for symbolic dimensions, a different one for each.
_SIZES = (2, 3, 5, 7, 11, 13, 17, 19)
# A shape that every reduction, transposition and removal of an axis of size one changes.
_TRIAL_SHAPE = (1, 2, 3, 1, 4)


def passed_on_values(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """For the output of each node that always returns its only input: that input.

    Each operator is tried once, with one input, one output and no attributes.
    """
    known: dict[ir.OperatorIdentifier, bool] = {}
    found: dict[ir.Value, ir.Value] = {}
    for node in nodes_of(model.graph):
        if len(node.inputs) != 1 or len(node.outputs) != 1 or node.attributes or node.inputs[0] is None:
            continue
        operator = node.op_identifier()
        if operator not in known:
            known[operator] = _returns_its_input(node, model.opset_imports)
        if known[operator]:
            source = node.inputs[0]
            found[node.outputs[0]] = found.get(source, source)
    return found


def _returns_its_input(node: ir.Node, opsets: Mapping[str, int]) -> bool:
    if node.domain not in opsets:
        return False
    given = ir.Value(name="x", shape=ir.Shape(_TRIAL_SHAPE), type=ir.TensorType(ir.DataType.FLOAT))
    trial = ir.Node(node.domain, node.op_type, [given], outputs=[ir.Value(name="y")])
    return _returned_input(_NodeGroup(trial.outputs[0], [trial], inputs={"x"}), {"x": given}, opsets) is not None


def returned_input(node: ir.Node, opsets: Mapping[str, int]) -> ir.Value | None:
    """The input that a node returns unchanged because of its constants; None if it computes something.

    Weights are no constants: that a bias is zero does not make a sum a no-op.
    """
    given = {value.name: value for value in node.inputs if value is not None and value.name}
    if len(node.outputs) != 1 or any(map(_has_graphs, node.attributes.values())):
        return None
    computed = {name: value for name, value in given.items() if not value.is_initializer()}
    constants = {name: ir.convenience.get_const_tensor(value) for name, value in computed.items()}
    known = {name: constant for name, constant in constants.items() if constant is not None}
    types = {name: value for name, value in given.items() if name not in known}
    if len(types) != 1 or any(constant.nbytes > _MAX_CONSTANT_BYTES for constant in known.values()):
        return None
    found = _returned_input(_NodeGroup(node.outputs[0], [node], known, set(types)), types, opsets)
    return given[found] if found is not None else None


class RemovedNoOps:
    """Finds the tensors of a rewritten graph that equal tensors which were removed together with no-op nodes.

    `tensors` has the names in the rewritten graph of the tensors of the original graph that it has. Its values may have
    types that those of the original graph do not.
    """

    def __init__(
        self,
        original: ir.Model,
        original_values: Mapping[str, ir.Value],
        rewritten_values: Mapping[str, ir.Value],
        tensors: Mapping[str, str],
    ) -> None:
        self._opsets = original.opset_imports
        self._original = original_values
        self._rewritten = rewritten_values
        self._positions = {node: position for position, node in enumerate(original.graph)}
        self._tensors = tensors

    def find(self, name: str) -> str | None:
        """The tensor of the rewritten graph that equals a removed tensor of the original graph; None if none does."""
        group = self._removed_with(self._original[name]) if name in self._original else None
        if group is None:
            return None
        group.nodes.sort(key=lambda node: self._positions.get(node, 0))
        types = {name: self._typed(name) for name in group.inputs}
        source = _returned_input(group, types, self._opsets)
        return self._tensors[source] if source is not None else None

    def _typed(self, name: str) -> ir.Value:
        """A surviving tensor as one of the two graphs has it: the one that knows its shape."""
        rewritten = self._rewritten.get(self._tensors[name])
        return rewritten if rewritten is not None and rewritten.shape is not None else self._original[name]

    def _removed_with(self, result: ir.Value) -> _NodeGroup | None:
        """The nodes that compute a removed tensor from surviving ones; None where they are too many."""
        group = _NodeGroup(result)
        waiting = [result]
        while waiting:
            node = waiting.pop().producer()
            if node is None or len(group.nodes) == _MAX_NODES or any(map(_has_graphs, node.attributes.values())):
                return None
            if node in group.nodes:
                continue
            group.nodes.append(node)
            for value in node.inputs:
                if value is None:
                    continue
                constant = ir.convenience.get_const_tensor(value)
                if value.name is None or (constant is not None and constant.nbytes > _MAX_CONSTANT_BYTES):
                    return None
                if constant is not None:
                    group.constants[value.name] = constant
                elif value.name in self._tensors:
                    group.inputs.add(value.name)
                else:
                    waiting.append(value)
        return group


@dataclasses.dataclass
class _NodeGroup:
    """Nodes with one result, and their inputs: constants, and the names of other tensors."""

    result: ir.Value
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    constants: dict[str, ir.TensorProtocol] = dataclasses.field(default_factory=dict)
    inputs: set[str] = dataclasses.field(default_factory=set)


def _has_graphs(attribute: ir.Attr) -> bool:
    return attribute.is_ref() or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _returned_input(group: _NodeGroup, types: Mapping[str, ir.Value], opsets: Mapping[str, int]) -> str | None:
    """The input that the nodes return unchanged; None where they compute something."""
    shapes = _shapes(types)
    candidates = {name for name, value in types.items() if _may_be_same(value, group.result)}
    if shapes is None or not candidates:
        return None
    generator = np.random.default_rng(0)
    try:
        trial = ReferenceEvaluator(_as_model(group, opsets))
        for _ in range(_TRIALS):
            samples = {name: _sample(generator, shapes[name], value.dtype) for name, value in types.items()}
            with np.errstate(all="ignore"):
                results: Any = trial.run(None, samples)
            candidates = {name for name in candidates if _same(samples[name], np.asarray(results[0]))}
            if not candidates:
                return None
    except Exception:  # noqa: BLE001  the evaluator raises many kinds of errors
        # No evidence is lost: nodes that cannot run count as computing, and a tensor that they removed counts as gone.
        return None
    return candidates.pop() if len(candidates) == 1 else None


def _may_be_same(one: ir.Value, other: ir.Value) -> bool:
    types = one.dtype is None or other.dtype is None or one.dtype == other.dtype
    return types and (one.shape is None or other.shape is None or len(one.shape) == len(other.shape))


def _shapes(values: Mapping[str, ir.Value]) -> dict[str, tuple[int, ...]] | None:
    """A shape for each of the values, with a size for each symbolic axis; None where one is unknown or too large."""
    sizes: dict[str, int] = {}
    left = list(_SIZES)
    shapes = {}
    for name, value in values.items():
        if value.shape is None:
            return None
        shape = []
        for axis in value.shape:
            if isinstance(axis, int):
                shape.append(axis)
                continue
            if axis.value is None or (axis.value not in sizes and not left):
                return None
            shape.append(sizes[axis.value] if axis.value in sizes else sizes.setdefault(axis.value, left.pop(0)))
        if not 0 < np.prod(shape, dtype=np.int64) <= _MAX_ELEMENTS:
            return None
        shapes[name] = tuple(shape)
    return shapes


def _as_model(group: _NodeGroup, opsets: Mapping[str, int]) -> onnx.ModelProto:
    weights = [ir.to_proto(ir.Tensor(c.numpy(), dtype=c.dtype, name=name)) for name, c in group.constants.items()]
    graph = onnx.GraphProto(
        name="trial",
        node=[ir.to_proto(node) for node in group.nodes],
        initializer=weights,
        input=[onnx.ValueInfoProto(name=name) for name in group.inputs],
        output=[onnx.ValueInfoProto(name=group.result.name)],
    )
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return onnx.ModelProto(ir_version=10, graph=graph, opset_import=versions)


def _sample(generator: np.random.Generator, shape: tuple[int, ...], dtype: ir.DataType | None) -> np.ndarray:
    """Numbers of all magnitudes and signs, infinite ones among them."""
    if dtype is None:
        raise ValueError("a tensor of unknown type cannot be sampled")
    kind = dtype.numpy()
    if kind == np.bool_:
        numbers = generator.integers(0, 2, _NUMBERS).astype(kind)
    elif np.issubdtype(kind, np.integer):
        limits = np.iinfo(kind)
        numbers = generator.integers(limits.min, limits.max, _NUMBERS, dtype=kind, endpoint=True)
    else:
        span = np.log(float(ml_dtypes.finfo(kind).max)) / 2
        finite = generator.standard_normal(_NUMBERS) * np.exp(generator.uniform(-span, span, _NUMBERS))
        infinite = generator.random(_NUMBERS) < 1 / 16
        numbers = np.where(infinite, np.copysign(np.inf, finite), finite).astype(kind)
    return np.resize(numbers, shape)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))
