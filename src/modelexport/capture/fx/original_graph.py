"""Run an exporter that uses `torch.onnx`, and keep the graph that it had before torch optimized it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass

from modelexport.hierarchy import Attribution, CallId
from modelexport.hierarchy.confidence import recorded_before_optimization, recorded_by_exporter
from modelexport.torch_support.private_fx import before_optimization

Export = Callable[[], torch.onnx.ONNXProgram | None]

_ORIGINAL_NOT_SEEN = (
    "the graph before torch's optimizer was not seen: owners come from torch's metadata in the optimized graph, where "
    "nodes may have been fused or merged since torch recorded them; export with optimize=False for exact owners"
)


@dataclasses.dataclass(frozen=True)
class ExportedGraphs:
    """The graphs of one export.

    Attributes:
        model: The graph that the exporter returned.
        original: The graph before optimization; `model` itself where it was not optimized or that graph was not seen.
        program: The program that both were translated from.
        original_was_seen: False where torch was asked to optimize the graph, and `original` is not that before.
    """

    model: ir.Model
    original: ir.Model
    program: torch.export.ExportedProgram
    original_was_seen: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the graphs."""
        return () if self.original_was_seen else (_ORIGINAL_NOT_SEEN,)

    def attributions(self, owners: Mapping[ir.Node, CallId]) -> dict[ir.Node, Attribution]:
        """Return the attributions of the nodes of `original` with these recorded calls."""
        attribute = recorded_by_exporter if self.original_was_seen else recorded_before_optimization
        return {node: attribute(call) for node, call in owners.items()}


def export_graphs(export: Export, exporter: str, *, optimize: bool) -> ExportedGraphs:
    """Run `export`, and copy the graph when torch starts to optimize it.

    Args:
        export: Exports a model with `torch.onnx`.
        exporter: The name of the exporter.
        optimize: Whether `export` asks torch to optimize the graph.

    Raises:
        RuntimeError: The exporter returned no program.
    """
    originals: list[ir.Model] = []
    with before_optimization(lambda graph: originals.append(graph.clone())):
        result = export()
    if result is None or result.exported_program is None:
        raise RuntimeError(f"the {exporter} exporter returned no program")
    if not originals:
        return ExportedGraphs(result.model, result.model, result.exported_program, original_was_seen=not optimize)
    original = originals[-1]
    # torch's optimizer inlines local functions. With the same functions inlined here, the graphs can be compared.
    InlinePass(lambda function: function.identifier() not in result.model.functions)(original)
    return ExportedGraphs(result.model, original, result.exported_program, original_was_seen=True)
