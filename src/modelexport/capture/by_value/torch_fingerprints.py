"""Fingerprints of PyTorch tensors."""

from __future__ import annotations

import torch

from modelexport.graph import Array, Fingerprint, take_fingerprint


def take_torch_fingerprint(tensor: torch.Tensor, moved: Fingerprint | None = None) -> Fingerprint | None:
    """The fingerprint of a tensor; None for an empty tensor, or one without readable elements.

    Args:
        tensor: The tensor.
        moved: The fingerprint of a tensor of which this one is a view with the same elements.
    """
    array = _readable(tensor)
    return take_fingerprint(array, tensor.element_size(), moved) if array is not None else None


def _readable(tensor: torch.Tensor) -> Array | None:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return None
    tensor = tensor.detach()
    try:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
            tensor = tensor.float()
        array: Array = tensor.resolve_neg().cpu().numpy()
    except (RuntimeError, TypeError, NotImplementedError):
        return None  # a wrapper of other tensors
    return array
