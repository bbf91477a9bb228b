"""Example inputs that the user gives: arrays in a file, numbers in JSON, or shapes to fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from modelexport.display import in_one_line
from modelexport.errors import InputError
from modelexport.input_options import GivenShape, read_arrays, read_shape
from modelexport.sources.inputs.synthesis import ModelFacts

_SEED = 0
_MOST_BYTES = 1 << 28
_MOST_DEPTH = 64
_TENSOR_KEYS = frozenset(["data", "dtype", "shape"])


def read_inputs(path: Path) -> dict[str, Any] | tuple[Any, ...]:
    """Read the inputs in a file: arrays by name in ``.npz``, numbers and lists by name in ``.json``."""
    if path.suffix.lower() == ".json":
        return read_json(path)
    try:
        return _nested({name: torch.from_numpy(array) for name, array in read_arrays(path).items()}, str(path))
    except TypeError as error:
        raise InputError(f"{path} has an array that torch cannot convert: {error}") from error


def _nested(tensors: dict[str, torch.Tensor], where: str) -> dict[str, Any]:
    """The tensors by argument: dots in a name lead into dicts, and into lists where all keys are positions."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *above, last = name.split(".")
        if len(above) > _MOST_DEPTH:
            raise InputError(
                f"{where} has an input whose name has {len(above)} dots: inputs are nested at most {_MOST_DEPTH}"
            )
        inside: Any = found
        for key in above:
            inside = inside.setdefault(key, {}) if isinstance(inside, dict) else inside
        if not isinstance(inside, dict) or last in inside:
            raise InputError(f"{where}: {name} and another input have the same place: name each tensor once")
        inside[last] = tensor
    return {name: _with_lists(value) for name, value in found.items()}


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {str(position) for position in range(len(value))}:
        return [_with_lists(value[str(position)]) for position in range(len(value))]
    return {key: _with_lists(entry) for key, entry in value.items()}


def read_json(path: Path) -> dict[str, Any] | tuple[Any, ...]:
    """Inputs by name, or a list of them by position.

    A list of numbers, nested or not, is a tensor; so is ``{"data": …, "dtype": "int64", "shape": [2, 3]}``, whose dtype
    and shape are optional. Any other object is a dict of such values, and a single number is a Python number.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} has more than {_MOST_BYTES >> 20} MiB: save such large inputs as .npz")
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a JSON file of example inputs: {error}") from error
    if isinstance(content, dict):
        return {name: _value(path, name, value, 0) for name, value in content.items()}
    if isinstance(content, list):
        return tuple(_value(path, str(place), value, 0) for place, value in enumerate(content))
    raise InputError(f"{path} contains a {type(content).__name__}: write an object with the inputs by name")


def _value(path: Path, name: str, value: Any, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise InputError(f"{path}: {name} is nested too deep")
    if isinstance(value, list):
        if value and any(isinstance(entry, dict) for entry in value):
            return [_value(path, f"{name}.{place}", entry, depth + 1) for place, entry in enumerate(value)]
        return _tensor(path, name, value, None)
    if isinstance(value, dict):
        if "data" in value and value.keys() <= _TENSOR_KEYS:
            return _described_tensor(path, name, value)
        return {key: _value(path, f"{name}.{key}", entry, depth + 1) for key, entry in value.items()}
    return value


def _described_tensor(path: Path, name: str, described: dict[str, Any]) -> torch.Tensor:
    dtype = None
    if described.get("dtype") is not None:
        dtype = getattr(torch, str(described["dtype"]), None)
        if not isinstance(dtype, torch.dtype):
            raise InputError(f"{path}: {name} has the dtype {described['dtype']!r}, which torch does not have")
    tensor = _tensor(path, name, described["data"], dtype)
    shape = described.get("shape")
    if shape is None:
        return tensor
    try:
        return tensor.reshape(shape)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{path}: {name} has {tensor.numel()} elements, which do not fit the shape {shape}") from error


def _tensor(path: Path, name: str, data: object, dtype: torch.dtype | None) -> torch.Tensor:
    try:
        return torch.tensor(data, dtype=dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: {name} is not a tensor: {in_one_line(error)}") from error


def fill_shapes(specifications: list[str], facts: ModelFacts) -> dict[str, Any] | tuple[Any, ...]:
    """A tensor for each ``name=1x16`` or ``name=1x16:int64``: random floats, or ones for other dtypes.

    A name with dots is a tensor inside an argument. The name may be left out for a model with one required input.
    """
    generator = torch.Generator().manual_seed(_SEED)
    required = [name for name, parameter in facts.parameters.items() if parameter.default is parameter.empty]
    inputs = required or facts.main_inputs or tuple(facts.parameters)
    found = _nested(dict(_fill(read_shape(text, inputs), generator) for text in specifications), "--input-shape")
    return tuple(found.values()) if found.keys() & set(facts.positional) else found


def _fill(given: GivenShape, generator: torch.Generator) -> tuple[str, torch.Tensor]:
    dtype: Any = getattr(torch, given.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{given.option}: {given.dtype!r} is not a torch dtype, such as float32 or int64")
    try:
        if dtype.is_floating_point:
            return given.name, torch.randn(given.shape, generator=generator).to(dtype)
        return given.name, torch.ones(given.shape, dtype=dtype)
    except (RuntimeError, NotImplementedError, MemoryError) as error:
        raise InputError(f"{given.option}: torch cannot create this tensor: {in_one_line(error)}") from error
