"""Equality of constants: initializers and outputs of Constant nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def same_constant(one: ir.Value, other: ir.Value, max_bytes: int | None = None) -> bool:
    """Whether two values are constants of the same type, shape and content.

    Args:
        one: A value.
        other: The value to compare it with.
        max_bytes: Larger constants count as different, and are not read.
    """
    first, second = ir.convenience.get_const_tensor(one), ir.convenience.get_const_tensor(other)
    if first is None or second is None:
        return False
    if first is second:
        return True
    if first.dtype != second.dtype or list(first.shape) != list(second.shape):
        return False
    if first.dtype == ir.DataType.STRING:
        # Not as arrays: in an untrusted file the shape need not match the content.
        if not isinstance(first, ir.StringTensor) or not isinstance(second, ir.StringTensor):
            return False
        return list(first.string_data()) == list(second.string_data())
    if max_bytes is not None and first.nbytes > max_bytes:
        return False
    return np.array_equal(first.numpy(), second.numpy())
