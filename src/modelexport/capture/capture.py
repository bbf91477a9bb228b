"""Capture: an exported graph, with the module call that ran each node where the exporter recorded it; the exporters."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch

from modelexport.attempt_report import Variant
from modelexport.capture.tracer_warnings import Specialization
from modelexport.errors import ExportError
from modelexport.hierarchy import Attribution, CallTree, ModuleTree, SizeRange
from modelexport.storage import ExporterFile
from modelexport.torch_support.transformers_private import has_exporters

# The names of the exporters, for the option ``exporter``.
DYNAMO = "dynamo"
TRANSFORMERS = "transformers"
DYNAMO_WITH_CACHES = "dynamo-with-caches"
TORCHSCRIPT = "torchscript"


def is_transformers_model(model: torch.nn.Module) -> bool:
    """Whether the model is an instance of `transformers.PreTrainedModel`; names play no role."""
    # There is no such model before its class is imported. `transformers.PreTrainedModel` would import it, and what it
    # needs, which fails in an environment where one of these libraries is broken.
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return isinstance(base, type) and isinstance(model, base)


def can_export(model: torch.nn.Module) -> bool:
    """Whether the model is of transformers' classes and the installed release of transformers has exporters."""
    return is_transformers_model(model) and has_exporters()


class VariantError(ExportError):
    """An exporter failed, and may succeed in another variant of its call. The cause is the exporter's own error.

    Attributes:
        variant: The variant to try next.
    """

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        super().__init__(f"the exporter may succeed in another variant: {variant}")


@dataclasses.dataclass(frozen=True)
class Capture:
    """The result of one exporter for one model.

    Attributes:
        exporter: The name of the exporter.
        model: The graph that the exporter returned or wrote.
        file: The file as the exporter wrote it, where serializing `model` would not give the same bytes.
        original_graph: The graph before optimization; `model` itself where it was not optimized.
        recorded: The attributions of the nodes of `original_graph` for which there is evidence. The owners of the other
            nodes are inferred later.
        tree: The modules of the model.
        calls: The module calls; their boundary tensors are tensors of `original_graph`.
        graph_kind: The kind of graph that `graph_text` prints: ``fx``, ``jit`` or ``eager``.
        graph_text: Returns the traced graph as text, with the call of each node.
        recorded_in_model: The attributions that the exporter recorded for nodes of `model` themselves.
        dynamic_sizes: The tensors of `original_graph` that contain the size of a dynamic axis, with the axis name.
        size_ranges: The sizes of dynamic axes for which it is valid, by name of the axis, where torch limits them.
        notes: Fallbacks and lost evidence that the user should know of.
        other_inputs: Other inputs of `forward` by keyword, for which the file must be right as well.
        variant: What the exporter did by itself to succeed; empty for its usual way.
        fixes_values: Whether values that depend on the inputs may be constants of the graph, so that the user may have
            to accept it. Only an exporter that fails for a model which reads such values says no.
        unproven: The constants of a trace that needs no consent if its file equals PyTorch on other inputs.
    """

    exporter: str
    model: ir.Model
    original_graph: ir.Model
    recorded: Mapping[ir.Node, Attribution]
    tree: ModuleTree
    calls: CallTree
    graph_kind: str
    graph_text: Callable[[], str]
    file: ExporterFile | None = None
    recorded_in_model: Mapping[ir.Node, Attribution] = dataclasses.field(default_factory=dict)
    dynamic_sizes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    size_ranges: Mapping[str, SizeRange] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    other_inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variant: str = ""
    fixes_values: bool = True
    unproven: Specialization | None = None
