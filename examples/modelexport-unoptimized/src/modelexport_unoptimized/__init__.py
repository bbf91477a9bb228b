"""`unoptimized`: the graph as it is before torch's optimizer folds, fuses and merges, so that each node is exact.

A plug-in is a class like this one and an entry point in the group ``modelexport.strategies`` that names it. It may
gather its evidence in any way, or, as here, leave that to a strategy that is there.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import torch

import modelexport


@final
class UnoptimizedStrategy(modelexport.Strategy):
    """Like `fx`, whatever `optimize` says."""

    name: ClassVar[str] = "unoptimized"

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        return ("dynamo",)

    def capture(self, request: modelexport.CaptureRequest) -> modelexport.Capture:
        options = {**request.options, "optimize": False}
        return modelexport.FxStrategy().capture(dataclasses.replace(request, options=options))
