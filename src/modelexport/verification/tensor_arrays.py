"""PyTorch tensors as numpy arrays."""

from __future__ import annotations

import numpy as np
import torch

_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The content of a tensor, of the same element type where numpy has it; else floats become 32-bit floats.

    Complex numbers become pairs of floats, as in ONNX graphs. The array may share the tensor's memory.
    """
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.dtype not in _NUMPY_FLOATS:
        tensor = tensor.float()
    array: np.ndarray = tensor.resolve_neg().cpu().contiguous().numpy()
    return array
