"""The inputs and outputs of a submodel."""

from __future__ import annotations

import msgspec
import onnx_ir as ir


class Port(msgspec.Struct, frozen=True):
    """An input or output of a submodel.

    Attributes:
        name: Its name in the submodel.
        argument: The forward argument or the field of the result; None for a tensor that is neither.
        tensor: The tensor of the full graph that it was.
        type: Its element type, if known.
        shape: Its shape, if known: sizes, names of dynamic axes, and None for dynamic axes without a name.
    """

    name: str
    argument: str | None
    tensor: str
    type: str | None
    shape: tuple[int | str | None, ...] | None


def port_of(value: ir.Value, name: str, argument: str | None, tensor: str) -> Port:
    """The port of a value of the submodel's graph."""
    return Port(
        name=name,
        argument=argument,
        tensor=tensor,
        type=None if value.dtype is None else value.dtype.name.lower(),
        shape=None
        if value.shape is None
        else tuple(size if isinstance(size, int) else size.value for size in value.shape),
    )
