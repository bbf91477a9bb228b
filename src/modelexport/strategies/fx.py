"""`fx`: exporters that go by way of `torch.export`, with the module calls seen while it traces as evidence."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from modelexport.capture import DYNAMO, DYNAMO_WITH_CACHES, TRANSFORMERS, Capture, explain_failure
from modelexport.capture.fx import (
    ExportedProgramModule,
    can_export,
    capture_program,
    capture_with_caches,
    capture_with_dynamo,
    capture_with_transformers,
)
from modelexport.strategies.base import CaptureRequest, Strategy

_CAPTURES = {
    DYNAMO: capture_with_dynamo,
    TRANSFORMERS: capture_with_transformers,
    DYNAMO_WITH_CACHES: capture_with_caches,
}


@final
class FxStrategy(Strategy):
    """Exports with `torch.onnx.export(dynamo=True)`, or with transformers' own exporter for models of its classes.

    A saved exported program was traced before; there the evidence is the record that it keeps.
    """

    name: ClassVar[str] = "fx"

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """See `Strategy.exporters`."""
        if can_export(model):
            return (DYNAMO, TRANSFORMERS, DYNAMO_WITH_CACHES)
        return (DYNAMO,)

    def capture(self, request: CaptureRequest) -> Capture:
        """See `Strategy.capture`."""
        if isinstance(request.model, ExportedProgramModule):
            return self._capture_program(request.model, request)
        capture = _CAPTURES.get(request.exporter, capture_with_dynamo)
        model, args, kwargs = request.model, request.args, request.kwargs
        try:
            return capture(model, args, kwargs, request.options)
        except Exception as error:
            raise explain_failure(self.name, request.exporter, request.model, error) from error

    def _capture_program(self, model: ExportedProgramModule, request: CaptureRequest) -> Capture:
        try:
            return capture_program(model, request.options)
        except Exception as error:
            raise explain_failure(self.name, request.exporter, request.model, error) from error
