"""Tensors that a rewriting removed because nothing was done to make them: a product with one, a sum with zero.

Which operations do nothing is not written down. The nodes that were removed with a tensor are tried out on numbers of
all magnitudes: where they give back just what they are given, the tensor is still there under that name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

# What does nothing is a few nodes, whose constants are single numbers, shapes and axes.
_MOST_NODES = 8
_MOST_CONSTANT_BYTES = 1024
_MOST_ELEMENTS = 2**22
_TRIALS = 4
# So many different numbers are tried, over and over in a large tensor; no shape repeats with them.
_NUMBERS = 4093
# Sizes for axes that have none, each its own.
_SIZES = (2, 3, 5, 7, 11, 13, 17, 19)


def removed_no_ops(
    first: ir.Model, rewritten: ir.Model, tensors: Mapping[str, str], wanted: Iterable[str]
) -> dict[str, str]:
    """For tensors that a rewriting removed, those of the rewritten graph that hold the same.

    Args:
        first: The graph before it was rewritten.
        rewritten: The graph that came out; it may know types that the first does not.
        tensors: Where the first graph's tensors are in the rewritten one.
        wanted: The names of tensors of the first graph; those that are still there are passed over.
    """
    made = _values(first.graph)
    now = _values(rewritten.graph)
    places = {node: place for place, node in enumerate(first.graph)}
    found: dict[str, str] = {}
    for name in dict.fromkeys(wanted):
        if name in tensors or name not in made:
            continue
        removed = _removed_with(made[name], tensors)
        if removed is not None:
            removed.nodes.sort(key=lambda node: places.get(node, 0))
            types = {given: now.get(tensors[given]) or made[given] for given in removed.given}
            passed_on = _passed_on(removed, types)
            if passed_on is not None:
                found[name] = tensors[passed_on]
    return found


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
    return {value.name: value for value in values if value.name}


@dataclasses.dataclass
class _Removed:
    """The nodes that made a tensor and were removed with it, and what they read: constants, and tensors still there."""

    result: ir.Value
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    constants: dict[str, ir.TensorProtocol] = dataclasses.field(default_factory=dict)
    given: set[str] = dataclasses.field(default_factory=set)


def _removed_with(result: ir.Value, tensors: Mapping[str, str]) -> _Removed | None:
    """None where that is more than what does nothing may be."""
    removed = _Removed(result)
    waiting = [result]
    while waiting:
        node = waiting.pop().producer()
        if node is None or len(removed.nodes) == _MOST_NODES or any(map(_has_graphs, node.attributes.values())):
            return None
        if node in removed.nodes:
            continue
        removed.nodes.append(node)
        for value in node.inputs:
            if value is None:
                continue
            constant = ir.convenience.get_const_tensor(value)
            if value.name is None or (constant is not None and constant.nbytes > _MOST_CONSTANT_BYTES):
                return None
            if constant is not None:
                removed.constants[value.name] = constant
            elif value.name in tensors:
                removed.given.add(value.name)
            else:
                waiting.append(value)
    return removed


def _has_graphs(attribute: ir.Attr) -> bool:
    return attribute.is_ref() or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _passed_on(removed: _Removed, types: Mapping[str, ir.Value]) -> str | None:
    """The tensor that the nodes are given and give back; None where there is none."""
    shapes = _shapes(types)
    candidates = {name for name, value in types.items() if _may_be_same(value, removed.result)}
    if shapes is None or not candidates:
        return None
    generator = np.random.default_rng(0)
    try:
        trial = ReferenceEvaluator(_as_model(removed))
        for _ in range(_TRIALS):
            samples = {name: _sample(generator, shapes[name], value.dtype) for name, value in types.items()}
            with np.errstate(all="ignore"):
                results: Any = trial.run(None, samples)
            candidates = {name for name in candidates if _same(samples[name], np.asarray(results[0]))}
            if not candidates:
                return None
    except Exception:  # noqa: BLE001  what cannot be tried out, for whatever reason, is taken to do something
        return None
    return candidates.pop() if len(candidates) == 1 else None


def _may_be_same(one: ir.Value, other: ir.Value) -> bool:
    types = one.dtype is None or other.dtype is None or one.dtype == other.dtype
    return types and (one.shape is None or other.shape is None or len(one.shape) == len(other.shape))


def _shapes(values: Mapping[str, ir.Value]) -> dict[str, tuple[int, ...]] | None:
    """A shape for each of the values, with a size for each dynamic axis; None where one is unknown or too large."""
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
        if not 0 < np.prod(shape, dtype=np.int64) <= _MOST_ELEMENTS:
            return None
        shapes[name] = tuple(shape)
    return shapes


def _as_model(removed: _Removed) -> onnx.ModelProto:
    weights = [ir.to_proto(ir.Tensor(c.numpy(), dtype=c.dtype, name=name)) for name, c in removed.constants.items()]
    graph = onnx.GraphProto(
        name="trial",
        node=[ir.to_proto(node) for node in removed.nodes],
        initializer=weights,
        input=[onnx.ValueInfoProto(name=name) for name in removed.given],
        output=[onnx.ValueInfoProto(name=removed.result.name)],
    )
    holder = removed.nodes[0].graph
    opsets = holder.opset_imports.items() if holder is not None else ()
    versions = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets]
    return onnx.ModelProto(ir_version=10, graph=graph, opset_import=versions)


def _sample(generator: np.random.Generator, shape: tuple[int, ...], dtype: ir.DataType | None) -> np.ndarray:
    """Numbers of all magnitudes and signs, infinite ones among them."""
    if dtype is None:
        raise ValueError("there is nothing to try without a type")
    kind = dtype.numpy()
    if kind == np.bool_:
        numbers = generator.integers(0, 2, _NUMBERS).astype(kind)
    elif np.issubdtype(kind, np.integer):
        limits = np.iinfo(kind)
        numbers = generator.integers(limits.min, limits.max, _NUMBERS, dtype=kind, endpoint=True)
    else:
        span = np.log(float(np.finfo(kind).max)) / 2
        finite = generator.standard_normal(_NUMBERS) * np.exp(generator.uniform(-span, span, _NUMBERS))
        infinite = generator.random(_NUMBERS) < 1 / 16
        numbers = np.where(infinite, np.copysign(np.inf, finite), finite).astype(kind)
    return np.resize(numbers, shape)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))
