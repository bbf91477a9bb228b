"""A saved exported program: `torch.onnx.export(program)`, with the module calls that the program records.

The model's Python code is not available, so that no hook can run. But each node of the program has the stack of module
calls that were running when it was traced, also in a block under `no_grad` or `autocast`. Each node gets a serial
number, which torch copies to the nodes it is decomposed into. torch inlines such a block and gives its nodes the serial
number of the node that ran the block; there the generated code leads to the node inside the block. A node for which
neither leads to a stack has no recorded call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import onnx_ir as ir
import torch

from modelexport.capture import (
    DYNAMO,
    Capture,
    ExportedProgramModule,
    find_crossing_tensors,
    program_of,
    read_module_stack,
    read_module_tree,
)
from modelexport.capture.fx.node_owners import ProgramCalls
from modelexport.capture.fx.original_graph import ExportedGraphs, dynamic_sizes, export_graphs, onnx_values
from modelexport.capture.fx.program_nodes import format_program, nodes_in_order, owning_nodes, program_graphs
from modelexport.capture.fx.trace_recorder import GeneratedCode
from modelexport.capture.size_ranges import size_ranges
from modelexport.errors import UnusableOptionError
from modelexport.hierarchy import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree, TensorInfo
from modelexport.torch_support import in_this_thread, named_arguments, named_results
from modelexport.torch_support.private import unflatten
from modelexport.torch_support.private_fx import serial_of, serials_removed, set_serial


def capture_program(model: ExportedProgramModule, options: Mapping[str, Any]) -> Capture:
    """Export a saved program with `torch.onnx.export(program)` and record the module call of each node.

    Raises:
        UnusableOptionError: An option that `torch.export.export` has already decided for the program.
    """
    for name in ("dynamic_shapes", "dynamic_axes"):
        if options.get(name) is not None:
            raise UnusableOptionError(
                f"torch.export.export decided which axes of the exported program are dynamic; {name} cannot change it.",
                "Leave it out, or export the program again.",
            )
    program, tree = program_of(model), read_module_tree(model)

    def export() -> torch.onnx.ONNXProgram | None:
        return torch.onnx.export(program, (), None, dynamo=True, **{"verbose": False, **options})

    record = _ProgramRecord(program, tree)
    with record.watching():
        graphs = export_graphs(export, DYNAMO, optimize=bool(options.get("optimize", True)))
    found = record.find_calls(graphs.program)
    recorded = graphs.attributions(found)
    owners = {node: attribution.owner for node, attribution in recorded.items()}
    return Capture(
        exporter=DYNAMO,
        model=graphs.model,
        original_graph=graphs.original,
        recorded=recorded,
        tree=tree,
        calls=boundaries_by_flow(graphs, owners, found.calls, program, tree),
        graph_kind="fx",
        graph_text=lambda: format_program(graphs.program, found.owners),
        dynamic_sizes=dynamic_sizes(graphs),
        size_ranges=size_ranges(graphs.model, program),
        notes=(*found.notes, *graphs.notes),
        fixes_values=False,
    )


class _ProgramRecord:
    """The module calls that a saved program records, and the serial numbers of its nodes during an export."""

    def __init__(self, program: torch.export.ExportedProgram, tree: ModuleTree) -> None:
        self._tree = tree
        owning = owning_nodes(program.graph_module)
        self._owning_nodes = set(owning.values())
        self._nodes = list(nodes_in_order(program.graph, owning))
        self._calls: dict[CallId, ModuleCall] = {}
        self._owners = [self._call_of_stack(node) for node in self._nodes]
        self._generated = GeneratedCode()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Give the nodes serial numbers and record the generated code that torch runs, within the context."""
        with serials_removed(self._nodes):
            for serial, node in enumerate(self._nodes):
                set_serial(node, serial)
            handle = torch.nn.modules.module.register_module_forward_pre_hook(in_this_thread(self._record_generated))
            try:
                yield
            finally:
                handle.remove()

    def find_calls(self, decomposed: torch.export.ExportedProgram) -> ProgramCalls:
        """Return the calls, and the call that ran each node of the decomposed program of the export."""
        nodes = (node for _, graph in program_graphs(decomposed) for node in graph.nodes)
        owners = {node: call for node in nodes if (call := self._call_of(node)) is not None}
        notes = () if owners else ("no module call is known for any node of the program: owners come from data flow",)
        return ProgramCalls(owners, CallTree(self._calls), notes=notes)

    def _call_of(self, node: torch.fx.Node) -> CallId | None:
        serial = serial_of(node)
        if serial is None:
            return None
        source = self._nodes[serial]
        if source not in self._owning_nodes or source.target is node.target:
            return self._owners[serial]
        # A node of an inlined block: its serial number is that of the node that ran the block.
        generated = self._generated.find(node)
        return self._owners[generated.serial] if generated is not None and generated.serial is not None else None

    def _record_generated(self, module: torch.nn.Module, args: object) -> None:
        if isinstance(module, torch.fx.GraphModule):
            self._generated.record(module)

    def _call_of_stack(self, node: torch.fx.Node) -> CallId | None:
        call: CallId | None = None
        for entry in read_module_stack(node):
            if entry.path not in self._tree or (call is None and entry.path):
                # torch's entry is not a module; the entries inside it are not reliable either.
                return None
            inner = CallId(entry.path, entry.index)
            if inner not in self._calls:
                self._calls[inner] = ModuleCall(entry.path, inner.index, call)
            call = inner
        return call


def boundaries_by_flow(
    graphs: ExportedGraphs,
    owners: Mapping[ir.Node, CallId],
    calls: CallTree,
    program: torch.export.ExportedProgram,
    tree: ModuleTree,
) -> CallTree:
    """Return the calls with boundary tensors from data flow; the program does not record the names of arguments."""
    graph = graphs.original.graph
    root = _root_call(graph, program, tree)
    entering, leaving = find_crossing_tensors(graph, owners, calls)
    values = {value.name: value for node in graph for value in node.outputs}
    values |= {value.name: value for value in graph.inputs}
    # A tensor between the translations of two FX nodes need not be a value of the program.
    program_tensors = set(onnx_values(graphs.program, graphs.original).values())

    def boundary(crossing: list[str], prefix: str) -> tuple[BoundaryTensor, ...]:
        names = [name for name in crossing if name in program_tensors]
        single = len(names) == 1
        return tuple(
            BoundaryTensor(prefix if single else f"{prefix}_{number}", name, _info(values[name]))
            for number, name in enumerate(names)
        )

    found = {
        call.id: msgspec.structs.replace(
            call,
            inputs=boundary(entering.get(call.id, []), "input"),
            outputs=boundary(leaving.get(call.id, []), "output"),
        )
        for call in calls
    }
    return CallTree({**found, root.id: root})


def _root_call(graph: ir.Graph, program: torch.export.ExportedProgram, tree: ModuleTree) -> ModuleCall:
    """Return the root's call: the graph's inputs and outputs, with the names that the program records for them."""
    spec, parameters = program.call_spec, tree[ROOT_CALL.path].forward_arguments
    arguments = _leaf_names(spec.in_spec, len(graph.inputs), lambda given: named_arguments(parameters, *given))
    results = _leaf_names(spec.out_spec, len(graph.outputs), named_results)

    def boundary(values: Sequence[ir.Value], names: list[str | None]) -> tuple[BoundaryTensor, ...]:
        pairs = zip(names, values, strict=True)
        return tuple(BoundaryTensor(name or value.name or "", value.name, _info(value)) for name, value in pairs)

    return ModuleCall(
        ROOT_CALL.path, inputs=boundary(graph.inputs, arguments), outputs=boundary(graph.outputs, results)
    )


def _leaf_names(spec: Any, count: int, named: Callable[[Any], Iterable[tuple[str, torch.Tensor]]]) -> list[str | None]:
    """Return the names of the leaves of the structure `spec`, as `named` yields them; None without `count` leaves."""
    if spec is None or spec.num_leaves != count:
        return [None] * count
    leaves = [torch.empty(0) for _ in range(count)]
    names = {id(tensor): name for name, tensor in named(unflatten(leaves, spec))}
    return [names.get(id(leaf)) for leaf in leaves]


def _info(value: ir.Value) -> TensorInfo | None:
    if value.shape is None or value.dtype is None:
        return None
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return TensorInfo(shape, str(value.dtype.numpy()) if value.dtype != ir.DataType.STRING else "string")
