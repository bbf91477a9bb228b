"""The arithmetic of one node from its shapes: multiply-accumulates and other operations, by kind of operator.

Multiply-accumulates (MACs) are those of matrix products, convolutions, attention and recurrent layers. Any other step
on one element (an addition, a comparison, a function such as ``exp`` or ``tanh``) is one other operation, on integers
too. An operator that ONNX defines by a formula counts the steps of that formula; a bias is one addition for each output
element. Padding counts like data, as in other counters.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx

from modelexport.errors import ModelExportError

Shape = tuple[int, ...]


class UnknownShapeError(ModelExportError):
    """A cost needs a shape that is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """The arithmetic of a node.

    Attributes:
        macs: Multiply-accumulates.
        other: Other operations on single elements.
    """

    macs: int = 0
    other: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations as torch's FlopCounterMode and fvcore count them: two for each MAC, no others."""
        return 2 * self.macs

    @property
    def operations(self) -> int:
        """All operations: FLOPs and others."""
        return self.flops + self.other


NO_WORK = Work()


@dataclasses.dataclass(frozen=True, slots=True)
class NodeShapes:
    """A node and the shapes of its inputs and outputs; None where a shape is unknown or an input is left out."""

    node: onnx.NodeProto
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]

    def input(self, position: int) -> Shape:
        """The shape of an input.

        Raises:
            UnknownShapeError: It is unknown.
        """
        shape = self.inputs[position] if position < len(self.inputs) else None
        if shape is None:
            raise UnknownShapeError
        return shape

    def output(self, position: int = 0) -> Shape:
        """The shape of an output.

        Raises:
            UnknownShapeError: It is unknown.
        """
        shape = self.outputs[position] if position < len(self.outputs) else None
        if shape is None:
            raise UnknownShapeError
        return shape

    def has_input(self, position: int) -> bool:
        """Whether the node has this optional input."""
        return position < len(self.node.input) and bool(self.node.input[position])

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return onnx.helper.get_attribute_value(attribute)
        return default


Cost = Callable[[NodeShapes], Work]


# --- matrix products and convolutions --------------------------------------------------------------------------


def matmul(shapes: NodeShapes) -> Work:
    return Work(macs=math.prod(shapes.output()) * _axis(shapes.input(0), -1))


def fused_matmul(shapes: NodeShapes) -> Work:
    inner = -2 if shapes.attribute("transA", 0) else -1
    return Work(macs=math.prod(shapes.output()) * _axis(shapes.input(0), inner))


def gemm(shapes: NodeShapes) -> Work:
    size = math.prod(shapes.output())
    inner = _axis(shapes.input(0), 0 if shapes.attribute("transA", 0) else 1)
    return Work(size * inner, size if shapes.has_input(2) else 0)


def convolution(weight: int, bias: int) -> Cost:
    def cost(shapes: NodeShapes) -> Work:
        size = math.prod(shapes.output())
        return Work(size * math.prod(shapes.input(weight)[1:]), size if shapes.has_input(bias) else 0)

    return cost


def transposed_convolution(shapes: NodeShapes) -> Work:
    # Each input element is multiplied by the whole kernel of its channel.
    macs = math.prod(shapes.input(0)) * math.prod(shapes.input(1)[1:])
    return Work(macs, math.prod(shapes.output()) if shapes.has_input(2) else 0)


def einsum(shapes: NodeShapes) -> Work:
    """All operands in one loop over every index: what a product of two operands costs."""
    equation = shapes.attribute("equation", b"").decode(errors="replace").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    sizes: dict[str, int] = {}
    names = terms.split(",")
    if len(names) != len(shapes.inputs):
        raise UnknownShapeError
    for position, term in enumerate(names):
        shape = shapes.input(position)
        left, dots, right = term.partition("...")
        spread = len(shape) - len(left) - len(right)
        if spread < 0 or (spread and not dots):
            raise UnknownShapeError
        # The axes of an ellipsis are aligned at their end.
        between = [f"...{spread - axis}" for axis in range(spread)]
        for name, size in zip([*left, *between, *right], shape, strict=True):
            sizes[name] = max(sizes.get(name, 1), size)
    loop = math.prod(sizes.values())
    if arrow:
        kept = {name for name in sizes if name in result or (name.startswith("...") and "..." in result)}
    else:
        kept = {name for name in sizes if name.startswith("...") or terms.count(name) == 1}
    summed = len(kept) < len(sizes)
    if len(names) == 1:
        return Work(other=loop if summed else 0)
    return Work(loop * (len(names) - 1)) if summed else Work(other=loop * (len(names) - 1))


# --- attention -------------------------------------------------------------------------------------------------


SOFTMAX_STEPS = 5  # maximum, subtract, exp, sum, divide


def _attended(heads: int, queries: int, keys: int, key_size: int, value_size: int, *, extra: int) -> Work:
    """Scores, softmax and the weighted sum of values; scaling is one step for each score, `extra` are others."""
    scores = heads * queries * keys
    return Work(scores * (key_size + value_size), scores * (SOFTMAX_STEPS + 1 + extra))


def attention(shapes: NodeShapes) -> Work:
    """Attention of opset 23. No part is left out for a causal mask."""
    query, key, value = (shapes.input(position) for position in range(3))
    if len(query) == 3:
        heads = int(shapes.attribute("q_num_heads", 0))
        key_heads = int(shapes.attribute("kv_num_heads", 0))
        if not heads or not key_heads:
            raise UnknownShapeError
        batch, queries, width = query
        keys, key_size, value_size = _axis(key, 1), width // heads, _axis(value, 2) // key_heads
    else:
        batch, heads, queries, key_size = _of_rank(query, 4)
        keys, value_size = _axis(key, 2), _axis(value, 3)
    if shapes.has_input(4):
        keys += _axis(shapes.input(4), 2)
    softcap = 3 if shapes.attribute("softcap", 0.0) else 0
    return _attended(batch * heads, queries, keys, key_size, value_size, extra=shapes.has_input(3) + softcap)


def packed_attention(shapes: NodeShapes) -> Work:
    """Attention of onnxruntime: the projections to query, key and value included."""
    batch, length, width = _of_rank(shapes.input(0), 3)
    projected = _axis(shapes.input(1), 1)
    value_size = _axis(shapes.output(), 2)
    heads = int(shapes.attribute("num_heads", 1)) or 1
    key_size = (projected - value_size) // 2
    mixed = _attended(batch * heads, length, length, key_size // heads, value_size // heads, extra=shapes.has_input(3))
    rows = batch * length * projected
    return Work(mixed.macs + rows * width, mixed.other + (rows if shapes.has_input(2) else 0))


def multi_head_attention(shapes: NodeShapes) -> Work:
    """MultiHeadAttention and GroupQueryAttention of onnxruntime."""
    query = shapes.input(0)
    batch, queries = query[:2]
    heads = int(shapes.attribute("num_heads", 1)) or 1
    width = _axis(shapes.output(), 2)
    # The keys with those of the past are an output; without one, the key input has all of them.
    present = shapes.outputs[1] if len(shapes.outputs) > 1 else None
    if present is not None and len(present) == 4:
        keys = present[2]
    else:
        keys = _axis(shapes.input(1), -2) if shapes.has_input(1) else queries
    return _attended(batch * heads, queries, keys, width // heads, width // heads, extra=0)


# --- recurrent -------------------------------------------------------------------------------------------------


def recurrent(gates: int, steps: int, peepholes: int = 0) -> Cost:
    """A recurrent layer over the whole sequence.

    Args:
        gates: How many products of the input and of the state there are.
        steps: Other steps for each element of the state: sums of the two products, activations, the new state.
        peepholes: The position of the peephole weights, which are three MACs for each element; 0 if there are none.
    """

    def cost(shapes: NodeShapes) -> Work:
        # With layout 1 batch and time are exchanged, which changes nothing here.
        first, second, size = _of_rank(shapes.input(0), 3)
        directions, _, hidden = _of_rank(shapes.input(2), 3)
        cells = first * second * directions * hidden
        peephole = 3 if peepholes and shapes.has_input(peepholes) else 0
        # Input and state have a bias each.
        bias = 2 * gates if shapes.has_input(3) else 0
        return Work(cells * (gates * (size + hidden) + peephole), cells * (steps + bias))

    return cost


# --- everything else -------------------------------------------------------------------------------------------


def each_output(steps: int) -> Cost:
    return lambda shapes: Work(other=steps * math.prod(shapes.output()))


def each_input(steps: int, for_output: int = 0) -> Cost:
    """Steps for each element of the first input; `for_output` for each output element, which a reduction has."""

    def cost(shapes: NodeShapes) -> Work:
        finished = for_output * math.prod(shapes.output()) if for_output else 0
        return Work(other=steps * math.prod(shapes.input(0)) + finished)

    return cost


def variadic(for_output: int = 0) -> Cost:
    def cost(shapes: NodeShapes) -> Work:
        return Work(other=(max(len(shapes.inputs) - 1, 0) + for_output) * math.prod(shapes.output()))

    return cost


def pooling(shapes: NodeShapes) -> Work:
    return Work(other=math.prod(shapes.output()) * math.prod(shapes.attribute("kernel_shape", ())))


def norm(steps: int, bias: int) -> Cost:
    def cost(shapes: NodeShapes) -> Work:
        return Work(other=(steps + shapes.has_input(bias)) * math.prod(shapes.input(0)))

    return cost


def gelu(shapes: NodeShapes) -> Work:
    steps = 9 if shapes.attribute("approximate", b"none") == b"tanh" else 5
    return Work(other=steps * math.prod(shapes.output()))


def clip(shapes: NodeShapes) -> Work:
    return Work(other=max(shapes.has_input(1) + shapes.has_input(2), 1) * math.prod(shapes.output()))


_TAPS = {b"nearest": 0, b"linear": 2, b"bilinear": 2, b"cubic": 4, b"bicubic": 4}


def interpolation(default: bytes, *, every_axis: bool) -> Cost:
    """Each output element is a weighted sum of the neighbours: two or four along each interpolated axis."""

    def cost(shapes: NodeShapes) -> Work:
        taps = _TAPS.get(shapes.attribute("mode", default), 0)
        source, result = shapes.input(0), shapes.output()
        axes = len(result) - 2 if every_axis else sum(a != b for a, b in zip(source, result, strict=True))
        return Work(other=2 * math.prod(result) * taps**axes if taps and axes > 0 else 0)

    return cost


def nothing(shapes: NodeShapes) -> Work:
    return NO_WORK


def _axis(shape: Shape, position: int) -> int:
    if not -len(shape) <= position < len(shape):
        raise UnknownShapeError
    return shape[position]


def _of_rank(shape: Shape, rank: int) -> Shape:
    if len(shape) != rank:
        raise UnknownShapeError
    return shape
