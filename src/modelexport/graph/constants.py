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


def same_elements(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values are constants with the same elements other than zero, in any order, and at least two of them.

    So a weight equals itself in another memory layout, which permutes the elements and pads them with zeros.
    """
    tensors = [ir.convenience.get_const_tensor(value) for value in (one, other)]
    if tensors[0] is None or tensors[1] is None or tensors[0].dtype != tensors[1].dtype:
        return False
    first, second = (array[array != 0] for array in (tensor.numpy() for tensor in tensors if tensor is not None))
    if first.size != second.size or first.size < 2:
        return False
    return np.array_equal(np.sort(first), np.sort(second))
