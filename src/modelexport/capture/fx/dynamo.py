"""The dynamo exporter: `torch.onnx.export(dynamo=True)`, called as a user would and watched while it works."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass

from modelexport.capture import DYNAMO, Capture, read_module_tree
from modelexport.capture.fx.evidence import FxEvidence, FxSources, axis_sizes, onnx_values
from modelexport.capture.fx.trace_recorder import Recorder
from modelexport.errors import UnsupportedLibraryError
from modelexport.hierarchy import CallId
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.torch_support.private_fx import before_optimization


def capture_with_dynamo(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Capture:
    """Export with `torch.onnx.export(dynamo=True)` and gather what ran each node.

    Args:
        model: The model, in the mode it is to be exported in.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`.

    Returns:
        The graph before and after optimization with the evidence for its nodes.
    """

    def export() -> torch.onnx.ONNXProgram | None:
        return torch.onnx.export(
            model, args, None, kwargs=dict(kwargs) or None, dynamo=True, **{"verbose": False, **options}
        )

    return capture_watched(model, export, DYNAMO)


def capture_watched(
    model: torch.nn.Module, export: Callable[[], torch.onnx.ONNXProgram | None], exporter: str
) -> Capture:
    """What `export` makes of the model, with the evidence for its nodes.

    Args:
        model: The model that is exported.
        export: Exports it by way of `torch.export` and `torch.onnx`.
        exporter: The name of the exporter.
    """
    tree = read_module_tree(model)
    recorder = Recorder(model, tree)
    try:
        with recorder.watching():
            seen = see_export(export, exporter)
    except UnsupportedLibraryError:
        # Without hooks the evidence would be weaker, and nothing would say so.
        raise
    except Exception:  # noqa: BLE001  tried again below, where it is raised if it is not the hooks
        # Whatever torch exports by itself is exported: should the hooks be what it fails on, the exporter's own
        # record has to do. If it fails without them too, that is the error to tell.
        recorder = Recorder(model, tree)
        seen = see_export(export, exporter)
    evidence = FxEvidence(seen.program, recorder, tree)
    sources = FxSources(seen.program)
    recorded = recorded_calls(seen.traced, evidence, sources)
    return Capture(
        exporter=exporter,
        model=seen.model,
        traced=seen.traced,
        recorded={node: recorded_by_exporter(call) for node, call in recorded.items()},
        tree=tree,
        calls=evidence.calls(onnx_values(seen.program, seen.traced)),
        traced_as="fx",
        describe=lambda: describe_program(seen.program, evidence),
        axis_sizes=axis_sizes(seen.traced, sources),
    )


@dataclasses.dataclass(frozen=True)
class SeenExport:
    """An export: the graph, the graph before optimization, and the program that both were made of."""

    model: ir.Model
    traced: ir.Model
    program: torch.export.ExportedProgram


class CallEvidence(Protocol):
    """Something that knows who ran the nodes of a program."""

    def call_of(self, node: torch.fx.Node) -> CallId | None:
        """The call that ran `node`, or None where nothing recorded it."""


def see_export(export: Callable[[], torch.onnx.ONNXProgram | None], exporter: str) -> SeenExport:
    """Run `export`, and look at the graph before it is optimized."""
    before: list[ir.Model] = []
    with before_optimization(lambda graph: before.append(graph.clone())):
        made = export()
    if made is None or made.exported_program is None:
        raise RuntimeError(f"the {exporter} exporter returned no program")
    traced = before[-1] if before else made.model
    if before and traced.functions:
        # The optimizer starts by inlining; the same here keeps the two graphs comparable.
        InlinePass()(traced)
    return SeenExport(made.model, traced, made.exported_program)


def recorded_calls(traced: ir.Model, evidence: CallEvidence, sources: FxSources) -> dict[ir.Node, CallId]:
    """The recorded call of each node that leads back to an FX node."""
    recorded: dict[ir.Node, CallId] = {}
    for node in _all_nodes(traced):
        source = sources.of(node)
        call = evidence.call_of(source) if source is not None else None
        if call is not None:
            recorded[node] = call
    return recorded


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def describe_program(program: torch.export.ExportedProgram, evidence: CallEvidence) -> str:
    """The FX graph as text, each node behind the call that ran it."""
    lines = []
    for name, module in program.graph_module.named_modules():
        if isinstance(module, torch.fx.GraphModule):
            lines.append(f"graph {name or '(main)'}:")
            for node in module.graph.nodes:
                call = evidence.call_of(node) if node.op == "call_function" else None
                owner = "" if call is None else str(call) or "(root)"
                lines.append(f"  [{owner}] {node.format_node()}")
    return "\n".join(lines) + "\n"
