"""Which library a model's class comes from: transformers has an exporter of its own."""

from __future__ import annotations

import sys

import torch

from modelexport.torch_support.transformers_private import (
    has_exporters,
)


def is_transformers_model(model: torch.nn.Module) -> bool:
    """Whether the model is of transformers' classes; its own class alone tells, not its name."""
    # Nobody can have made such a model without importing transformers.
    transformers = sys.modules.get("transformers")
    base = getattr(transformers, "PreTrainedModel", None) if transformers is not None else None
    return isinstance(base, type) and isinstance(model, base)


def can_export(model: torch.nn.Module) -> bool:
    """Whether the model is of transformers' classes, and its exporter is installed: only some releases have it."""
    return is_transformers_model(model) and has_exporters()
