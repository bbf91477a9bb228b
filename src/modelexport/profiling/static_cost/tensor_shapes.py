"""Shapes and sizes of the tensors of a graph, with dynamic axes set by the caller."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

import msgspec
import onnx
import onnx_ir as ir

from modelexport.errors import InputError
from modelexport.graph import proto_subgraphs_of
from modelexport.hierarchy import MAX_SIZE

# Exporters write the size of a derived axis as an expression: "2*s53", "Min(512, s53)".
_MAX_EXPRESSION = 200
Number = int | Fraction
_OPERATORS: Mapping[type, Callable[[Number, Number], Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: Fraction(a) / b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a ** _small(b),
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "Min": min,
    "Max": max,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "floor": math.floor,
    "ceiling": math.ceil,
}
Dimension = int | str | None


class Tensor(msgspec.Struct, frozen=True):
    """A tensor.

    Attributes:
        shape: Its shape; None if unknown.
        element_type: Its element type, as `onnx.TensorProto` numbers it; 0 if unknown.
        weight: The id of the initializer that it is; empty if it is none.
    """

    shape: tuple[int, ...] | None = None
    element_type: int = 0
    weight: str = ""

    @property
    def size(self) -> int | None:
        """Its size in bytes; None if unknown."""
        bits = _bits(self.element_type)
        return None if self.shape is None or bits is None else -(-math.prod(self.shape) * bits // 8)


UNKNOWN = Tensor()


class Axes:
    """The sizes of dynamic axes by name.

    Args:
        sizes: What the caller gave.

    Raises:
        InputError: A size is not a positive integer.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        given: object = sizes  # untyped callers pass anything
        if not isinstance(given, Mapping):
            raise InputError(f"axes are a dict of sizes by name, such as {{'batch': 8}}, not {type(given).__name__}")
        for name, size in sizes.items():
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise InputError(f"axis {name!r} has the size {size!r}: a size is an integer from 1")
        self._sizes = dict(sizes)
        self._known: dict[str, int | None] = dict(sizes)
        self._named: list[str] = []

    def check(self, graph: onnx.GraphProto) -> None:
        """Check that the axes of the graph's inputs are known, and that the given names are in the graph.

        Raises:
            InputError: Names the axes.
        """
        weights = {weight.name for weight in graph.initializer}
        inputs = {value.name: value for value in graph.input if value.name not in weights}
        named = dict.fromkeys(
            dimension
            for value in (*inputs.values(), *graph.value_info, *graph.output)
            for dimension in _dimensions(value) or ()
            if isinstance(dimension, str)
        )
        self._named = list(named)
        unnamed = [f"{name}.{axis}" for name, value in inputs.items() for axis in _unnamed(value)]
        unused = [name for name in self._sizes if name not in named and name not in unnamed]
        if unused:
            known = ", ".join([*named, *unnamed]) or "none: every axis has a fixed size"
            raise InputError(f"the model has no dynamic axis {unused[0]!r}; its dynamic axes: {known}")
        missing: dict[Dimension, str] = {}
        for name, value in inputs.items():
            for axis, dimension in enumerate(_dimensions(value) or ()):
                if self.resolve(dimension, name, axis) is None:
                    missing.setdefault(dimension or f"{name}.{axis}", name)
        if missing:
            shown = ", ".join(f"{axis!r} of input {name!r}" for axis, name in missing.items())
            options = " ".join(f"--axis {axis}=1" for axis in missing)
            raise InputError(f"the size of dynamic axes is not known: {shown}; give it, for example {options}")

    def resolve(self, dimension: Dimension, tensor: str = "", axis: int = 0) -> int | None:
        """The size of a dimension: a number, the name of an axis or an expression of such; None if unknown."""
        if isinstance(dimension, int):
            return dimension
        if dimension is None:
            return self._sizes.get(f"{tensor}.{axis}")
        if dimension not in self._known:
            self._known[dimension] = _evaluated(dimension, self._sizes)
        return self._known[dimension]

    @property
    def unknown(self) -> list[str]:
        """The axes that the graph names and that have no size: those that depend on the data of a run."""
        return [name for name in self._named if name.isidentifier() and self.resolve(name) is None]

    def tensors(
        self, graph: onnx.GraphProto, inferred: onnx.GraphProto | None = None, prefix: str = ""
    ) -> dict[str, Tensor]:
        """The tensors that a graph declares, by name; where it does not say their shape, the inferred one.

        Args:
            graph: The graph.
            inferred: The same graph with inferred types.
            prefix: The prefix of the ids of its initializers.
        """
        found: dict[str, Tensor] = {}
        for source in (graph, inferred) if inferred is not None else (graph,):
            for value in (*source.value_info, *source.input, *source.output):
                known = found.get(value.name, UNKNOWN)
                if known.shape is None or not known.element_type:
                    read = self._tensor(value)
                    shape = read.shape if known.shape is None else known.shape
                    found[value.name] = Tensor(shape, known.element_type or read.element_type)
        for weight in graph.initializer:
            found[weight.name] = Tensor(tuple(weight.dims), weight.data_type, f"{prefix}{weight.name}")
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            found[name] = Tensor(tuple(sparse.dims), sparse.values.data_type, f"{prefix}{name}")
        return found

    def fix(self, graph: onnx.GraphProto) -> None:
        """Write the known sizes of dynamic axes into the types that a graph and its subgraphs declare."""
        waiting = [graph]
        while waiting:
            current = waiting.pop()
            for value in (*current.value_info, *current.input, *current.output):
                for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
                    size = self.resolve(_dimension(dimension), value.name, axis)
                    if size is not None:
                        dimension.dim_value = size
            waiting += [inner for node in current.node for _, inner in proto_subgraphs_of(node)]

    def _tensor(self, value: onnx.ValueInfoProto) -> Tensor:
        kind = value.type.tensor_type.elem_type
        dimensions = _dimensions(value)
        if dimensions is None:
            return Tensor(None, kind)
        sizes = [self.resolve(dimension, value.name, axis) for axis, dimension in enumerate(dimensions)]
        known = tuple(size for size in sizes if size is not None and size >= 0)
        return Tensor(known if len(known) == len(sizes) and math.prod(known) <= MAX_SIZE else None, kind)


def _dimensions(value: onnx.ValueInfoProto) -> list[Dimension] | None:
    kind = value.type.tensor_type
    return [_dimension(each) for each in kind.shape.dim] if kind.HasField("shape") else None


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value)
    return str(dimension.dim_param) or None


def _unnamed(value: onnx.ValueInfoProto) -> Iterator[int]:
    yield from (axis for axis, dimension in enumerate(_dimensions(value) or ()) if dimension is None)


@functools.lru_cache(maxsize=64)
def _bits(element_type: int) -> int | None:
    try:
        kind = ir.DataType(element_type)
        return None if kind in (ir.DataType.UNDEFINED, ir.DataType.STRING) else round(kind.itemsize * 8)
    except (TypeError, ValueError):
        return None


def _small(exponent: Number) -> int:
    if exponent not in range(5):
        raise ValueError("an exponent that no shape has")
    return int(exponent)


def _evaluated(expression: str, sizes: Mapping[str, int]) -> int | None:
    """The value of an arithmetic expression of axis names; None if it has anything else in it."""
    if len(expression) > _MAX_EXPRESSION:
        return None
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body, sizes)
    except (ArithmeticError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return None
    return int(value) if value == int(value) and 0 <= value <= MAX_SIZE else None


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> Number:
    found: Number
    match tree:
        case ast.Constant(value=int() as number):
            found = number
        case ast.Name(id=name):
            found = sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_value(operand, sizes)
        case ast.BinOp(left=left, op=operator, right=right):
            found = _OPERATORS[type(operator)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            found = _FUNCTIONS[name](*[_value(argument, sizes) for argument in arguments])
        case _:
            raise ValueError("not an arithmetic expression")
    if not -MAX_SIZE <= found <= MAX_SIZE:
        raise OverflowError
    return found
