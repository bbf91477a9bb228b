"""Lets torchvision be imported beside a CPU build of torch.

The wheel of torchvision on PyPI is built for CUDA: its C library cannot be loaded here, and the operators it would
register are missing, which stops the import. Their names are all that importing needs; no model here calls one.
"""

from __future__ import annotations

import torch

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_SCHEMAS = (f"nms{_BOXES}", f"qnms{_BOXES}")


def declare() -> torch.library.Library:
    """Declares what importing torchvision looks for; it holds for as long as the result is kept."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    return library
