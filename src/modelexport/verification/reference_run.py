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
def reference_run(model: torch.nn.Module) -> Iterator[None]:
    """Run the model in evaluation mode, without gradients and in full precision; it and torch are restored."""
    with (
        TORCH_LOCK,
        preserved_state(model),
        buffers_restored(model),
        evaluation_mode(model),
        full_float32_precision(),
        torch.no_grad(),
    ):
        yield
