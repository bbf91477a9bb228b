"""Whether a model is of transformers' classes, for which transformers has an exporter of its own."""

from __future__ import annotations

import sys

import torch

from modelexport.torch_support.transformers_private import has_exporters


def is_transformers_model(model: torch.nn.Module) -> bool:
    """Whether the model is an instance of `transformers.PreTrainedModel`; names play no role."""
    # Without an imported transformers there is no such model.
    transformers = sys.modules.get("transformers")
    base = getattr(transformers, "PreTrainedModel", None) if transformers is not None else None
    return isinstance(base, type) and isinstance(model, base)


def can_export(model: torch.nn.Module) -> bool:
    """Whether the model is of transformers' classes and the installed release of transformers has exporters."""
    return is_transformers_model(model) and has_exporters()
