"""`htp`, hierarchical trace-and-project: the TorchScript exporter; the scope of each traced node is the evidence."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from modelexport.capture import TORCHSCRIPT, Capture, failures_explained, refuse_program
from modelexport.strategies.base import CaptureRequest, Strategy


@final
class HtpStrategy(Strategy):
    """Exports with `torch.onnx.export(dynamo=False)`."""

    name: ClassVar[str] = "htp"

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """See `Strategy.exporters`."""
        return (TORCHSCRIPT,)

    def capture(self, request: CaptureRequest) -> Capture:
        """See `Strategy.capture`."""
        # Imported here so that the other strategies load faster.
        from modelexport.capture.torchscript import capture_with_torchscript

        refuse_program(self.name, request.model)
        model, args, kwargs = request.model, request.args, request.kwargs
        with failures_explained(self.name, request.exporter, model):
            return capture_with_torchscript(
                model, args, kwargs, request.named_options, training=request.training, variant=request.variant
            )
