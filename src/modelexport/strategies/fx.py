"""`fx`: exporters built on `torch.export`; the module calls recorded while it traces are the evidence."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from modelexport.attempt_report import Variant
from modelexport.capture import (
    DYNAMO,
    DYNAMO_WITH_CACHES,
    TRANSFORMERS,
    Capture,
    ExportedProgramModule,
    can_export,
    failures_explained,
)
from modelexport.strategies.base import CaptureRequest, Strategy


@final
class FxStrategy(Strategy):
    """Exports with `torch.onnx.export(dynamo=True)`, or with transformers' own exporter for transformers models.

    A saved exported program is already traced: its stored `nn_module_stack` is the evidence.
    """

    name: ClassVar[str] = "fx"

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """See `Strategy.exporters`."""
        if can_export(model):
            return (DYNAMO, TRANSFORMERS, DYNAMO_WITH_CACHES)
        return (DYNAMO,)

    def last_variants(self, model: torch.nn.Module, exporter: str) -> tuple[Variant, ...]:
        """See `Strategy.last_variants`."""
        # With caches registered, torch's exporter can do all that it can do without.
        is_repeated = exporter == DYNAMO and can_export(model)
        if is_repeated or isinstance(model, ExportedProgramModule):
            return ()
        return (Variant(constant_values=True, constants_folded=True), Variant(constant_values=True, input_values=True))

    def capture(self, request: CaptureRequest) -> Capture:
        """See `Strategy.capture`."""
        # Imported here so that the other strategies load faster.
        from modelexport.capture import fx

        model, args, kwargs, options = request.model, request.args, request.kwargs, request.named_options
        with failures_explained(self.name, request.exporter, model):
            if isinstance(model, ExportedProgramModule):
                return fx.capture_program(model, options)
            if request.exporter == TRANSFORMERS:
                # It names the outputs itself, after the same fields.
                capture, options = fx.capture_with_transformers, request.options
            else:
                capture = fx.capture_with_caches if request.exporter == DYNAMO_WITH_CACHES else fx.capture_with_dynamo
            return capture(model, args, kwargs, options, request.variant)
