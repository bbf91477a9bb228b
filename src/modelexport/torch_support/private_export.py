"""Private APIs of `torch.export`: fake tensors, errors, and the format of saved programs. See `private_part`."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from modelexport.torch_support.private_part import Part

_FAKE = Part("torch._subclasses.fake_tensor.FakeTensor", "recognizes tensors without values")
_DATA_DEPENDENCE = "recognizes errors of torch.export for code that depends on tensor values"
_BY_GUARD = Part("torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode", _DATA_DEPENDENCE)
_BY_OUTPUT = Part("torch._subclasses.fake_tensor.DataDependentOutputException", _DATA_DEPENDENCE)
_BY_SHAPE = Part("torch._subclasses.fake_tensor.DynamicOutputShapeException", _DATA_DEPENDENCE)
_SCHEMA = Part("torch._export.serde.schema", "checks a saved program before torch loads it")
_UNION = Part("torch._export.serde.union._Union", "checks a saved program before torch loads it")
_SIZE_OPERATORS = Part("torch._export.serde.serialize._SYM_OPS", "checks a saved program before torch loads it")
_SIZE_FUNCTIONS = Part("torch.utils._sympy.functions", "checks a saved program before torch loads it")


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a fake tensor, which has a shape and a type but no values."""
    return _FAKE.is_instance(tensor)


def data_dependence_errors() -> tuple[type[BaseException], ...]:
    """The errors of `torch.export` for Python code that depends on tensor values."""
    parts = (_BY_GUARD, _BY_OUTPUT, _BY_SHAPE)
    for part in parts:
        if not (isinstance(part.fixed, type) and issubclass(part.fixed, BaseException)):
            raise part.changed("it is not an exception")
    return tuple(part.fixed for part in parts)


def program_schema() -> Any:
    """The module with the schema classes of saved programs."""
    return _SCHEMA.check(_SCHEMA.fixed, ModuleType)


def is_schema_union(kind: type) -> bool:
    """Whether a class of the schema is a union: exactly one of its fields is set."""
    return issubclass(kind, _UNION.check(_UNION.fixed, type))


def size_operators() -> Iterable[Any]:
    """The Python operators that a saved program may call on sizes."""
    return _SIZE_OPERATORS.check(_SIZE_OPERATORS.fixed, Iterable)  # type: ignore[type-abstract]  # for isinstance


def size_functions() -> Any:
    """The module with torch's sympy functions of sizes."""
    return _SIZE_FUNCTIONS.check(_SIZE_FUNCTIONS.fixed, ModuleType)
