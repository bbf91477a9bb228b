"""Inputs to run the original and the rewritten graph on: given arrays, or synthesized ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from modelexport.display import counted
from modelexport.errors import InputError
from modelexport.graph import shapes_compatible
from modelexport.input_options import read_shape
from modelexport.ort import numpy_type

Array = npt.NDArray[Any]

_SEED = 0
# Integers are mostly indices or masks, and the smallest embedding table has two rows.
_INTEGER_LIMIT = 2
# The sizes to try for dynamic axes, smallest first: convolutions need larger ones.
_AXIS_SIZES = (4, 16, 64, 224)
_MAX_ELEMENTS = 2**26


@dataclasses.dataclass(frozen=True)
class InputPair:
    """An input of the original graph, and the matching input of the rewritten graph.

    Users can give arrays by any of the names; the first is that of the original graph.
    """

    original: ir.Value
    rewritten: ir.Value
    names: tuple[str, ...]


def pair_inputs(original: ir.Model, rewritten: ir.Model, arguments: Mapping[str, str]) -> list[InputPair]:
    """Match the inputs of two graphs by name, or by position if the names differ.

    `arguments` are the names of forward arguments, by input of the original model.
    """
    original_inputs, rewritten_inputs = _inputs(original), _inputs(rewritten)
    by_name = {value.name: value for value in rewritten_inputs}
    if set(by_name) == {value.name for value in original_inputs}:
        pairs = [(value, by_name[value.name]) for value in original_inputs]
    elif len(original_inputs) == len(rewritten_inputs):
        pairs = list(zip(original_inputs, rewritten_inputs, strict=True))
    else:
        raise InputError(
            f"the tagged file has {counted(len(original_inputs), 'input')}, the rewritten one "
            f"{len(rewritten_inputs)} with different names: they cannot be matched"
        )
    for own, other in pairs:
        if _kind(own) != _kind(other) or not shapes_compatible(own.shape, other.shape):
            raise InputError(
                f"input {own.name!r} ({own.dtype}, {own.shape}) of the tagged file does not match input {other.name!r} "
                f"({other.dtype}, {other.shape}) of the rewritten one"
            )
    return [
        InputPair(
            own,
            other,
            tuple(dict.fromkeys(str(name) for name in (own.name, arguments.get(own.name or ""), other.name) if name)),
        )
        for own, other in pairs
    ]


def _inputs(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _type_of(value: ir.Value) -> np.dtype[Any]:
    dtype = numpy_type(value.dtype) if value.dtype is not None else None
    if dtype is None:
        raise InputError(f"input {value.name!r} is not a numeric tensor ({value.type}): its values cannot be compared")
    return dtype


def _kind(value: ir.Value) -> str:
    return _type_of(value).kind.replace("u", "i")


def fill_shapes(specifications: Sequence[str]) -> dict[str, Array]:
    """An array for each ``name=1x16`` or ``name=1x16:int64``."""
    filled: dict[str, Array] = {}
    random = np.random.default_rng(_SEED)
    for text in specifications:
        given = read_shape(text)
        try:
            dtype = np.dtype(given.dtype)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "fiub":
            raise InputError(f"{given.option}: {given.dtype!r} is not a numeric type such as float32 or int64")
        filled[given.name] = _fill(given.shape, dtype, random, given.option)
    return filled


def feeds_from_arrays(pairs: Sequence[InputPair], given: Mapping[str, Array]) -> list[Array]:
    """The given array of each input."""
    used: dict[str, Array] = {}
    for pair in pairs:
        name = next((name for name in pair.names if name in given), None)
        if name is None:
            raise InputError(f"nothing was given for input {pair.names[0]!r}: give all of {_listed(pairs)}, or none")
        used[name] = given[name]
        for value in (pair.original, pair.rewritten):
            if not shapes_compatible(value.shape, given[name].shape):
                raise InputError(
                    f"input {name!r} was given as {list(given[name].shape)}, but the file takes {value.shape}"
                )
    unknown = sorted(given.keys() - used.keys())
    if unknown:
        raise InputError(f"there is no input {unknown[0]!r}: the file takes {_listed(pairs)}")
    return list(used.values())


def synthesize_feeds(
    pairs: Sequence[InputPair],
    axes: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[list[Array]]:
    """Synthesize arrays from the types and shapes of the inputs, several times with larger dynamic axes.

    `axes` are sizes of dynamic axes, `shapes` those of inputs, both by name.
    """
    given = shapes or {}
    wanted = [(pair, given[pair.names[0]] if pair.names[0] in given else _shape(pair, axes or {})) for pair in pairs]
    has_dynamic_axes = any(size is None for _, shape in wanted for size in shape)
    for dynamic_size in _AXIS_SIZES if has_dynamic_axes else _AXIS_SIZES[:1]:
        random = np.random.default_rng(_SEED)
        yield [
            _fill(
                [dynamic_size if size is None else size for size in shape],
                _type_of(pair.original),
                random,
                f"input {pair.names[0]!r}",
            )
            for pair, shape in wanted
        ]


def feeds_of_model(
    model: ir.Model,
    given: Mapping[str, Array] | None,
    arguments: Mapping[str, str],
    *,
    axes: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> Iterator[dict[str, Array]]:
    """The inputs of one model by name: the given arrays, or synthesized ones with several sizes of dynamic axes.

    Args:
        model: The model.
        given: Arrays by name of the input or of the forward argument; None synthesizes them.
        arguments: The names of forward arguments, by input.
        axes: Sizes of dynamic axes by name, for synthesized inputs.
        shapes: Shapes of inputs by name, for synthesized inputs.

    Raises:
        InputError: An array or a shape does not match its input, or a name is unknown.
    """
    pairs = pair_inputs(model, model, arguments)
    inputs = [pair.original for pair in pairs]
    names = {str(size.value) for value in inputs for size in value.shape or () if not isinstance(size, int)}
    for axis in axes:
        if axis not in names:
            known = f"it has {', '.join(sorted(names))}" if names else "all its axes have fixed sizes"
            raise InputError(f"the file has no dynamic axis {axis!r}: {known}")
    for name, shape in shapes.items():
        value = next((value for value in inputs if value.name == name), None)
        if value is None:
            raise InputError(f"there is no input {name!r}: the file takes {_listed(pairs)}")
        if not shapes_compatible(value.shape, shape):
            raise InputError(f"input {name!r} was given as {list(shape)}, but the file takes {value.shape}")
    candidates = synthesize_feeds(pairs, axes, shapes) if given is None else [feeds_from_arrays(pairs, given)]
    for arrays in candidates:
        yield feeds_of_graph(inputs, arrays)


def feeds_of_graph(values: Sequence[ir.Value], arrays: Sequence[Array]) -> dict[str, Array]:
    """The arrays by input name of a graph, converted to its input types."""
    return {
        value.name or "": array.astype(_type_of(value), copy=False) for value, array in zip(values, arrays, strict=True)
    }


def _shape(pair: InputPair, axes: Mapping[str, int]) -> tuple[int | None, ...]:
    """The shape of an input; None for a dynamic axis of unknown size."""
    shape = pair.original.shape if pair.original.shape is not None else pair.rewritten.shape
    if shape is None:
        raise InputError(f"input {pair.names[0]!r} has no known shape: give it with --inputs or --input-shape")
    return tuple(size if isinstance(size, int) else axes.get(str(size.value)) for size in shape)


def _fill(shape: Sequence[int], dtype: np.dtype[Any], random: np.random.Generator, what: str) -> Array:
    elements = int(np.prod(shape, dtype=object)) if len(shape) else 1
    if elements > _MAX_ELEMENTS:
        raise InputError(f"{what} has {elements} elements, more than are synthesized: give it with --inputs")
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape), dtype)
    array = np.asarray(random.integers(0, _INTEGER_LIMIT, shape), dtype)
    # A mask of zeros masks everything, and a softmax over nothing is NaN. A scalar may be a divisor or a length.
    array[(..., slice(1)) if array.ndim else ...] = 1
    return array


def _listed(pairs: Sequence[InputPair]) -> str:
    return ", ".join(repr(pair.names[0]) for pair in pairs)
