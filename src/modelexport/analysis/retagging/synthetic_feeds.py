"""What two graphs that should compute the same are run on: given arrays, shapes to fill, or made up from the inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from modelexport.errors import InputError
from modelexport.input_options import read_shape
from modelexport.ort import numpy_type

Array = npt.NDArray[Any]

_SEED = 0
# Whole numbers are indices or masks most of the time, and the smallest table has two rows.
_WHOLE_NUMBERS = 2
# What axes of any length are tried with, one after the other: small, and large enough for what a graph needs.
_LENGTHS = (4, 16, 64, 224)
_MOST_ELEMENTS = 2**26


@dataclasses.dataclass(frozen=True)
class InputPair:
    """The same input of two graphs.

    Attributes:
        first: As the first graph has it.
        second: As the second has it.
        names: What a user may call it, the first graph's name first.
    """

    first: ir.Value
    second: ir.Value
    names: tuple[str, ...]


def pair_inputs(first: ir.Model, second: ir.Model, arguments: Mapping[str, str]) -> list[InputPair]:
    """Which input of one graph is which of the other: by name, or by place where the names are others.

    Args:
        first: The first model.
        second: The second.
        arguments: For inputs of the first by name, what the model's forward calls them.

    Raises:
        InputError: Their inputs don't correspond.
    """
    ours, theirs = _inputs(first), _inputs(second)
    by_name = {value.name: value for value in theirs}
    if set(by_name) == {value.name for value in ours}:
        pairs = [(value, by_name[value.name]) for value in ours]
    elif len(ours) == len(theirs):
        pairs = list(zip(ours, theirs, strict=True))
    else:
        raise InputError(
            f"one file has {len(ours)} inputs and the other {len(theirs)}, under other names: "
            "nothing tells which is which"
        )
    for own, other in pairs:
        if _kind(own) != _kind(other) or not _shapes_fit(own, other):
            raise InputError(
                f"input {own.name!r} ({own.dtype}, {own.shape}) stands where input {other.name!r} ({other.dtype}, "
                f"{other.shape}) of the other file does, and cannot be the same"
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


def _kind(value: ir.Value) -> str:
    dtype = numpy_type(value.dtype) if value.dtype is not None else None
    if dtype is None:
        raise InputError(f"input {value.name!r} is no tensor of numbers ({value.type}): values cannot be compared")
    return "i" if dtype.kind == "u" else dtype.kind


def _shapes_fit(one: ir.Value, other: ir.Value) -> bool:
    if one.shape is None or other.shape is None:
        return True
    if len(one.shape) != len(other.shape):
        return False
    return all(
        not (isinstance(mine, int) and isinstance(theirs, int)) or mine == theirs
        for mine, theirs in zip(one.shape, other.shape, strict=True)
    )


def fill_shapes(specifications: Sequence[str]) -> dict[str, Array]:
    """An array for each ``name=1x16`` or ``name=1x16:int64``.

    Raises:
        InputError: A specification cannot be read.
    """
    made: dict[str, Array] = {}
    draw = np.random.default_rng(_SEED)
    for text in specifications:
        given = read_shape(text)
        try:
            dtype = np.dtype(given.dtype)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in "fiub":
            raise InputError(f"{given.option}: {given.dtype!r} is no type of numbers, such as float32 or int64")
        made[given.name] = _fill(given.shape, dtype, draw, given.option)
    return made


def given_feeds(pairs: Sequence[InputPair], given: Mapping[str, Array]) -> list[Array]:
    """For each input the array that was given for it.

    Raises:
        InputError: One is missing, one too many, or of another shape than the file takes.
    """
    used: dict[str, Array] = {}
    for pair in pairs:
        name = next((name for name in pair.names if name in given), None)
        if name is None:
            raise InputError(f"nothing was given for input {pair.names[0]!r}: give all of {_listed(pairs)}, or none")
        used[name] = given[name]
        _check_shape(pair, name, given[name])
    unknown = sorted(given.keys() - used.keys())
    if unknown:
        raise InputError(f"there is no input {unknown[0]!r}: the file takes {_listed(pairs)}")
    return list(used.values())


def made_feeds(pairs: Sequence[InputPair]) -> Iterator[list[Array]]:
    """Arrays for the inputs, made up from their types and shapes; axes of any length longer from one to the next."""
    free = any(not isinstance(size, int) for pair in pairs for size in pair.first.shape or ())
    for length in _LENGTHS if free else _LENGTHS[:1]:
        draw = np.random.default_rng(_SEED)
        yield [_made(pair, length, draw) for pair in pairs]


def for_graph(values: Sequence[ir.Value], arrays: Sequence[Array]) -> dict[str, Array]:
    """The arrays by the names, and in the types, that the inputs of a graph have."""
    return {
        value.name or "": array.astype(_type_of(value), copy=False) for value, array in zip(values, arrays, strict=True)
    }


def _made(pair: InputPair, length: int, draw: np.random.Generator) -> Array:
    shape = pair.first.shape if pair.first.shape is not None else pair.second.shape
    if shape is None:
        raise InputError(f"input {pair.names[0]!r} has no known shape: give it with --inputs or --input-shape")
    sizes = [size if isinstance(size, int) else length for size in shape]
    return _fill(sizes, _type_of(pair.first), draw, f"input {pair.names[0]!r}")


def _type_of(value: ir.Value) -> np.dtype[Any]:
    dtype = numpy_type(value.dtype) if value.dtype is not None else None
    return dtype if dtype is not None else np.dtype(np.float32)


def _fill(shape: Sequence[int], dtype: np.dtype[Any], draw: np.random.Generator, what: str) -> Array:
    elements = int(np.prod(shape, dtype=object)) if len(shape) else 1
    if elements > _MOST_ELEMENTS:
        raise InputError(f"{what} has {elements} elements, more than is made up: give it with --inputs")
    if dtype.kind == "f":
        return np.asarray(draw.standard_normal(shape), dtype)
    array = np.asarray(draw.integers(0, _WHOLE_NUMBERS, shape), dtype)
    # A mask of zeros masks everything, and a softmax over nothing is NaN. A scalar may be a divisor or a length.
    array[(..., slice(1)) if array.ndim else ...] = 1
    return array


def _check_shape(pair: InputPair, name: str, array: Array) -> None:
    for value in (pair.first, pair.second):
        shape = value.shape
        if shape is None:
            continue
        fits = len(shape) == array.ndim and all(
            not isinstance(wanted, int) or wanted == size for wanted, size in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise InputError(f"input {name!r} was given as {list(array.shape)}, and the file takes {shape}")


def _listed(pairs: Sequence[InputPair]) -> str:
    return ", ".join(repr(pair.names[0]) for pair in pairs)
