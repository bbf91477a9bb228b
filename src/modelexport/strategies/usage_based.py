"""`usage_based`: any exporter; the values that each module call computed are the evidence."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import onnx
import onnx_ir as ir
import torch

from modelexport.capture import DYNAMO, TORCHSCRIPT, Capture, failures_explained, read_module_tree, refuse_program
from modelexport.errors import StrategyIncompatibleError
from modelexport.limits import NO_RUN_LIMITS
from modelexport.storage import ExporterFile
from modelexport.strategies.base import CaptureRequest, Strategy
from modelexport.torch_support import exporter_arguments, preserved_state
from modelexport.torch_support.private_export import fake_constants_refused


@final
class UsageBasedStrategy(Strategy):
    """Exports with plain torch, runs the model and the graph once each, and matches their tensors by value."""

    name: ClassVar[str] = "usage_based"

    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """See `Strategy.exporters`."""
        return (DYNAMO, TORCHSCRIPT)

    def capture(self, request: CaptureRequest) -> Capture:
        """See `Strategy.capture`."""
        # Imported here so that the other strategies load faster.
        from modelexport.capture.by_value import attribute_by_value, check_onnxruntime

        refuse_program(self.name, request.model)
        check_onnxruntime()
        if request.training and any(module.training for module in request.model.modules()):
            raise StrategyIncompatibleError(
                self.name,
                "a model in training mode computes different values in each run, so its values cannot be matched.",
                "Use another strategy, or export in evaluation mode.",
            )
        # The run that is compared begins in the state in which the export began: forward may change modes of torch.
        restored = preserved_state(request.model, silent=False)
        with restored, failures_explained(self.name, request.exporter, request.model):
            exported = _export(request)
        tree = read_module_tree(request.model)
        # The graph is exported from the caller's own model, so it is trusted: no limits.
        match = attribute_by_value(exported.graph, request.model, tree, request.args, request.kwargs, NO_RUN_LIMITS)
        if not match.agrees:
            raise StrategyIncompatibleError(
                self.name,
                f"the graph of the {request.exporter} exporter does not compute what the model computes: "
                f"{match.describe_agreement()}.",
                "Compare its outputs with PyTorch's, or choose another exporter",
            )
        return Capture(
            exporter=exported.exporter,
            model=exported.graph,
            file=exported.file,
            original_graph=exported.graph,
            recorded=match.known,
            tree=tree,
            calls=match.calls,
            graph_kind="eager",
            graph_text=match.describe,
            notes=exported.notes,
            fixes_values=request.exporter == TORCHSCRIPT,
        )


@dataclasses.dataclass(frozen=True)
class _Exported:
    """A graph, and the exporter's own file where its bytes cannot be written from the graph."""

    exporter: str
    graph: ir.Model
    file: ExporterFile | None = None
    notes: tuple[str, ...] = ()


def _export(request: CaptureRequest) -> _Exported:
    model, args, kwargs, options = request.model, request.args, request.kwargs, request.named_options
    if request.exporter == TORCHSCRIPT:
        from modelexport.capture.torchscript import capture_with_torchscript

        # Its recorded module calls are not used.
        capture = capture_with_torchscript(model, args, kwargs, options, variant=request.variant, boundaries=False)
        graph = capture.model
        if capture.file is not None:
            graph = ir.from_proto(onnx.load_model_from_string(b"".join(capture.file.pieces())))
        return _Exported(capture.exporter, graph, capture.file, capture.notes)
    args, named = exporter_arguments(args, kwargs)
    with fake_constants_refused(model):
        program = torch.onnx.export(model, args, None, kwargs=named, dynamo=True, **{"verbose": False, **options})
    if program is None:
        raise RuntimeError("the dynamo exporter returned no program")
    return _Exported(request.exporter, program.model)
