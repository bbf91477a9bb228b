"""Run an exporter that uses `torch.onnx`: the graph before torch optimized it, and the FX nodes and values behind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass

from modelexport.capture.fx.node_owners import ProgramCalls
from modelexport.capture.fx.program_nodes import program_graphs
from modelexport.errors import UnsupportedLibraryError
from modelexport.hierarchy import Attribution
from modelexport.hierarchy.confidence import recorded_before_optimization, recorded_by_exporter, recorded_unseen
from modelexport.torch_support.private import leaves_of
from modelexport.torch_support.private_fx import translated_node, translated_text, translations_seen

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
        notes: Why the graph before optimization was not seen.
    """

    model: ir.Model
    original: ir.Model
    program: torch.export.ExportedProgram
    notes: tuple[str, ...] = ()

    def source_of(self, node: ir.Node) -> torch.fx.Node | None:
        """Return the FX node that torch attached to the node, or the one whose text is in the node's metadata.

        Nodes of an inlined function have only the metadata, copied from the node that called the function.
        """
        source, text = translated_node(node), translated_text(node)
        return source if source is not None or text is None else self._by_text.get(text)

    @functools.cached_property
    def _by_text(self) -> dict[str | None, torch.fx.Node | None]:
        """FX nodes by their text; None for a text that several nodes have."""
        found: dict[str | None, torch.fx.Node | None] = {}
        for _, graph in program_graphs(self.program):
            for node in graph.nodes:
                text = node.format_node()
                found[text] = None if text in found else node
        return found

    def attributions(self, found: ProgramCalls) -> dict[ir.Node, Attribution]:
        """Return the attributions of the nodes of `original` that lead back to an FX node with a recorded call."""
        recorded: dict[ir.Node, Attribution] = {}
        functions = (node for function in self.original.functions.values() for node in function.all_nodes())
        for node in (*self.original.graph.all_nodes(), *functions):
            source = self.source_of(node)
            call = found.owners.get(source) if source is not None else None
            if call is None:
                continue
            if self.notes:
                recorded[node] = recorded_before_optimization(call)
            else:
                recorded[node] = recorded_unseen(call) if source in found.unseen else recorded_by_exporter(call)
        return recorded


def export_graphs(export: Export, exporter: str, *, optimize: bool) -> ExportedGraphs:
    """Run `export`, and copy the graph when torch has translated it, if it asks torch to `optimize` the graph.

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
    return ExportedGraphs(model, model, program, (_ORIGINAL_NOT_SEEN.format(unseen),))


def onnx_values(program: torch.export.ExportedProgram, model: ir.Model) -> dict[str, str | None]:
    """Return the tensor of the ONNX graph for each value of the program.

    Tensors have the names of FX values. A translation that returns its input unchanged gives the input's tensor the
    later name. A name that is missing is therefore searched among the users that were translated to no node.
    """
    names = set(model.graph.initializers)
    names.update(value.name for value in model.graph.inputs if value.name)
    translated: set[object] = set()
    for node in model.graph:
        translated.add(translated_node(node))
        names.update(value.name for value in node.outputs if value.name)
    signature = program.graph_signature
    states = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    renamed = _renamed_inputs_and_outputs(program, model)
    found: dict[str, str | None] = {}
    for node in reversed(program.graph.nodes):
        name = states.get(node.name, node.name)
        if name in names:
            found[node.name] = name
        elif node.name in renamed:
            found[node.name] = renamed[node.name]
        else:
            later = (found.get(user.name) for user in node.users if user not in translated)
            found[node.name] = next((tensor for tensor in later if tensor is not None), None)
    return found


def _renamed_inputs_and_outputs(program: torch.export.ExportedProgram, model: ir.Model) -> dict[str, str]:
    """Return the ONNX names of the program's inputs and outputs, in which they can differ from the FX names.

    Callers choose these names, and the exporter assigns them last; the order stays the same.
    """
    users = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in users]
    output = next(node for node in program.graph.nodes if node.op == "output")
    found: dict[str, str] = {}
    for nodes, values in ((inputs, model.graph.inputs), (leaves_of(output.args), model.graph.outputs)):
        if len(nodes) == len(values):
            pairs = zip(nodes, values, strict=True)
            found.update({n.name: v.name for n, v in pairs if isinstance(n, torch.fx.Node) and v.name})
    return found


def dynamic_sizes(graphs: ExportedGraphs) -> dict[str, str]:
    """Return the tensors of the original main graph that contain the size of a dynamic axis, each with the axis name.

    An FX node that computes a symbolic size from tensors alone reads the size of one of them. Every integer scalar that
    its translation computes is that size.
    """
    found: dict[str, str] = {}
    for node in graphs.original.graph:
        source = graphs.source_of(node) if node.inputs else None
        size = source.meta.get("val") if source is not None else None
        if source is None or not isinstance(size, torch.SymInt) or not size.node.expr.is_symbol:
            continue
        if not all(isinstance(value.meta.get("val"), torch.Tensor) for value in source.all_input_nodes):
            continue
        found.update({value.name: str(size) for value in node.outputs if value.name and _may_be_size(value)})
    return found


def _may_be_size(value: ir.Value) -> bool:
    return value.dtype in (None, ir.DataType.INT64) and (value.shape is None or tuple(value.shape) in ((), (1,)))
