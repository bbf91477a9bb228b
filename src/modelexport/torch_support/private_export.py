"""Private APIs of `torch.export`: fake tensors, errors, and the format of saved programs. See `private`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from modelexport.torch_support.private import called_through, find_attribute, fixed_part


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a fake tensor, which has a shape and a type but no values."""
    return isinstance(tensor, fixed_part("torch._subclasses.fake_tensor.FakeTensor"))


def fake_constants_refused(model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """Within the context, `torch.export.export` raises for a program with a constant that is a fake tensor.

    torch refuses such a program itself, but not in its strict mode: there decomposing it crashes the process. A forward
    that writes through `.data` leads to one.
    """

    def export(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        program = original(*args, **kwargs)
        stored = (*model.parameters(), *model.buffers())
        if any(map(is_fake, program.constants.values())) and not any(map(is_fake, stored)):
            raise RuntimeError("a constant of the exported program is a fake tensor, which has no values")
        return program

    return called_through("torch.export", "export", export)


def data_dependence_errors() -> tuple[type[BaseException], ...]:
    """The errors of `torch.export` for Python code that depends on tensor values."""
    return (
        fixed_part("torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode"),
        fixed_part("torch._subclasses.fake_tensor.DataDependentOutputException"),
        fixed_part("torch._subclasses.fake_tensor.DynamicOutputShapeException"),
    )


def name_dynamic_axes(program: torch.onnx.ONNXProgram, dynamic_shapes: Any) -> None:
    """Name the dynamic axes of a graph, as `torch.onnx.export` does with names among its `dynamic_shapes`."""
    find_attribute(program, "_rename_dynamic_axes")(dynamic_shapes)


def program_schema() -> Any:
    """The module with the schema classes of saved programs."""
    return fixed_part("torch._export.serde.schema")


def is_schema_union(kind: type) -> bool:
    """Whether a class of the schema is a union: exactly one of its fields is set."""
    union: type = fixed_part("torch._export.serde.union._Union")
    return issubclass(kind, union)


def size_operators() -> Iterable[Any]:
    """The Python operators that a saved program may call on sizes."""
    found: Iterable[Any] = fixed_part("torch._export.serde.serialize._SYM_OPS")
    return found


def size_functions() -> Any:
    """The module with torch's sympy functions of sizes."""
    return fixed_part("torch.utils._sympy.functions")
