"""Private APIs of `torch.export`: fake tensors, errors, and the format of saved programs. See `private_part`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from modelexport.errors import UnusableOptionError
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
_EXPORT = Part("torch.export.export", "sees the mode in which torch captures a model, and what it captured")
_RENAME_AXES = Part("torch.onnx.ONNXProgram._rename_dynamic_axes", "names the dynamic axes of a graph")


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a fake tensor, which has a shape and a type but no values."""
    return _FAKE.is_instance(tensor)


def fake_constants_refused(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Within the context, `torch.export.export` raises for a program with a weight or constant that is a fake tensor.

    torch refuses such a program itself, but not in its strict mode: there decomposing it crashes the process. A forward
    that writes through `.data` leads to one, and one that caches a tensor: its second trace finds that of the first.
    """
    # Before the first trace: the model may be on fake tensors itself.
    is_real = not any(map(is_fake, (*model.parameters(), *model.buffers())))

    def export(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        program = original(*args, **kwargs)
        if is_real and any(map(is_fake, (*program.constants.values(), *program.state_dict.values()))):
            raise UnusableOptionError(
                "a constant of the exported program is a fake tensor, which has no values.",
                "Do not write through .data in forward, and cache no tensors in it",
            )
        return program

    return _EXPORT.called_through(export)


def export_through(around: Callable[..., Any], *, required: bool = False) -> contextlib.AbstractContextManager[None]:
    """Within the context, call `torch.export.export` through `around`; its first argument is the original.

    `required` says that the exporter must call it.
    """
    return _EXPORT.called_through(around, required=required)


def data_dependence_errors() -> tuple[type[BaseException], ...]:
    """The errors of `torch.export` for Python code that depends on tensor values."""
    parts = (_BY_GUARD, _BY_OUTPUT, _BY_SHAPE)
    for part in parts:
        if not (isinstance(part.fixed, type) and issubclass(part.fixed, BaseException)):
            raise part.changed("it is not an exception")
    return tuple(part.fixed for part in parts)


def name_dynamic_axes(program: torch.onnx.ONNXProgram, dynamic_shapes: Any) -> None:
    """Name the dynamic axes of a graph, as `torch.onnx.export` does with names among its `dynamic_shapes`."""
    _RENAME_AXES.run(_RENAME_AXES.of(program), object, dynamic_shapes)


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
