"""`fx`: the dynamo exporter, with the module stack of each FX node as evidence."""

from __future__ import annotations

from typing import ClassVar, final

from modelexport.capture.capture import Capture
from modelexport.capture.diagnosis import explain_failure
from modelexport.capture.dynamo import capture_with_dynamo
from modelexport.errors import ModelExportError
from modelexport.strategies.base import CaptureRequest, Strategy


@final
class FxStrategy(Strategy):
    """Exports with `torch.onnx.export(dynamo=True)`."""

    name: ClassVar[str] = "fx"

    def capture(self, request: CaptureRequest) -> Capture:
        """See `Strategy.capture`."""
        try:
            return capture_with_dynamo(request.model, request.args, request.kwargs, request.options)
        except ModelExportError:
            raise
        except Exception as error:
            raise explain_failure(self.name, request.model, request.args, request.kwargs, error) from error
