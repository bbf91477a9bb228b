"""How the PyTorch model runs when a file is compared with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from modelexport.torch_support import (
    TORCH_LOCK,
    buffers_restored,
    evaluation_mode,
    full_float32_precision,
    preserved_state,
)


@contextlib.contextmanager
def reference_run(model: torch.nn.Module, *, training: bool = False) -> Iterator[None]:
    """Run the model without gradients and in full precision; it and torch are restored.

    Args:
        model: The model.
        training: Run it in its current mode instead of evaluation mode.
    """
    with (
        TORCH_LOCK,
        preserved_state(model),
        buffers_restored(model),
        contextlib.nullcontext() if training else evaluation_mode(model),
        full_float32_precision(),
        torch.no_grad(),
    ):
        yield
