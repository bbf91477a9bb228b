"""`htp`, hierarchical trace-and-project: the TorchScript exporter; the scope of each traced node is the evidence."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from modelexport.capture import TORCHSCRIPT, Capture, explain_failure, refuse_program
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
        try:
            return capture_with_torchscript(model, args, kwargs, request.named_options, training=request.training)
        except Exception as error:
            raise explain_failure(self.name, request.exporter, request.model, error) from error
