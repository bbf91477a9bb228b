"""Capture: a graph, and for each of its nodes the evidence of who ran it. What every exporter gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from modelexport.hierarchy import Attribution, CallTree, ModuleTree
from modelexport.storage import ExporterFile


@dataclasses.dataclass(frozen=True)
class Capture:
    """What one exporter made of one model.

    Attributes:
        exporter: Who made the graph.
        model: The graph as the exporter leaves it.
        file: The file as the exporter wrote it, where writing `model` would not give the same bytes.
        traced: The graph before optimization, or the final one itself where nothing was optimized.
        recorded: The attribution of each node of `traced` for which there is evidence; the rest is reasoned later.
        tree: The modules of the model.
        calls: The module calls; their boundary tensors are those of `traced`.
        traced_as: The form in which the model was traced: ``fx`` or ``jit``.
        describe: Writes out what was traced, for people.
        axis_sizes: The tensors of `traced` that hold the size of a dynamic axis, each with the axis' name.
        recorded_finally: The attribution of nodes of `model` themselves, where the exporter recorded that too.
        notes: What a user should know of the capture.
    """

    exporter: str
    model: ir.Model
    traced: ir.Model
    recorded: Mapping[ir.Node, Attribution]
    tree: ModuleTree
    calls: CallTree
    traced_as: str
    describe: Callable[[], str]
    file: ExporterFile | None = None
    recorded_finally: Mapping[ir.Node, Attribution] = dataclasses.field(default_factory=dict)
    axis_sizes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
