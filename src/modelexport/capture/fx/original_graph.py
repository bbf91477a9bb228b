"""Run an exporter that uses `torch.onnx`, and keep the graph that it had before torch optimized it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass

from modelexport.capture.fx.node_owners import ProgramCalls
from modelexport.capture.fx.onnx_sources import FxSources, all_nodes
from modelexport.errors import UnsupportedLibraryError
from modelexport.hierarchy import Attribution
from modelexport.hierarchy.confidence import recorded_before_optimization, recorded_by_exporter, recorded_unseen
from modelexport.torch_support.private_fx import translations_seen

Export = Callable[[], torch.onnx.ONNXProgram | None]

_ORIGINAL_NOT_SEEN = (
    "the graph before torch's optimizer was not seen{}: owners come from torch's metadata in the optimized graph, "
    "where nodes may have been fused or merged since torch recorded them; export with optimize=False for exact owners"
)


@dataclasses.dataclass(frozen=True)
class ExportedGraphs:
    """The graphs of one export.

    Attributes:
        model: The graph that the exporter returned.
        original: The graph before optimization; `model` itself where it was not optimized or that graph was not seen.
        program: The program that both were translated from.
        original_was_seen: False where torch was asked to optimize the graph, and `original` is not that before.
        notes: Why it was not seen.
    """

    model: ir.Model
    original: ir.Model
    program: torch.export.ExportedProgram
    original_was_seen: bool = True
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def sources(self) -> FxSources:
        """The FX nodes behind the nodes of the graphs."""
        return FxSources(self.program)

    def attributions(self, found: ProgramCalls) -> dict[ir.Node, Attribution]:
        """Return the attributions of the nodes of `original` that lead back to an FX node with a recorded call."""
        recorded: dict[ir.Node, Attribution] = {}
        for node in all_nodes(self.original):
            source = self.sources.find(node)
            call = found.owners.get(source) if source is not None else None
            if call is None:
                continue
            if not self.original_was_seen:
                recorded[node] = recorded_before_optimization(call)
            else:
                recorded[node] = recorded_unseen(call) if source in found.unseen else recorded_by_exporter(call)
        return recorded


def export_graphs(export: Export, exporter: str, *, optimize: bool) -> ExportedGraphs:
    """Run `export`, and copy the graph when torch has translated it.

    Args:
        export: Exports a model with `torch.onnx`.
        exporter: The name of the exporter.
        optimize: Whether `export` asks torch to optimize the graph.

    Raises:
        RuntimeError: The exporter returned no program.
    """
    originals: dict[torch.onnx.ONNXProgram, ir.Model | None] = {}

    def keep(program: torch.onnx.ONNXProgram, is_original: bool) -> None:
        originals[program] = program.model.clone() if is_original else None

    unseen = ""
    with contextlib.ExitStack() as stack:
        try:
            if optimize:
                stack.enter_context(translations_seen(keep))
        except UnsupportedLibraryError as error:
            unseen = f" ({error})"
        result = export()
    if result is None or result.exported_program is None:
        raise RuntimeError(f"the {exporter} exporter returned no program")
    model, program = result.model, result.exported_program
    if not optimize:
        return ExportedGraphs(model, model, program)
    original = originals.get(result)
    if original is not None:
        # torch inlines local functions and removes unused nodes before it optimizes: only then the graphs are alike.
        InlinePass(lambda function: function.identifier() not in model.functions)(original)
        RemoveUnusedNodesPass()(original)
        return ExportedGraphs(model, original, program)
    if result in originals:
        unseen = " (torch rewrote it before it was seen)"
    return ExportedGraphs(model, model, program, False, (_ORIGINAL_NOT_SEEN.format(unseen),))
