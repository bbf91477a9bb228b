"""`unoptimized`: export the graph before torch's optimizer folds, fuses and merges nodes, so that every owner is exact.

A plug-in is a class like this one and an entry point for it in the group ``modelexport.strategies``. It can collect its
own evidence or, as here, use an existing strategy.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import torch

import modelexport


@final
class UnoptimizedStrategy(modelexport.Strategy):
    """Like `fx` with ``optimize=False``."""

    name: ClassVar[str] = "unoptimized"

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        return ("dynamo",)

    def capture(self, request: modelexport.CaptureRequest) -> modelexport.Capture:
        options = {**request.options, "optimize": False}
        return modelexport.FxStrategy().capture(dataclasses.replace(request, options=options))
