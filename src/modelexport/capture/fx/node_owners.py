"""The module call that ran each node of a decomposed FX program.

A node's call is found by the first of these that applies:
1. The node was traced from code that torch generated for a block or a control-flow body: the last line of its stack
   trace leads to the node of the first trace, see `GeneratedNode`.
2. The serial number that `TraceRecorder` gave the node it was decomposed from.
3. torch's own `nn_module_stack`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import torch

from modelexport.capture import read_module_stack
from modelexport.capture.fx.program_nodes import nodes_in_order, owning_nodes, program_graphs
from modelexport.capture.fx.trace_recorder import ForwardPass, GeneratedNode, TraceRecorder
from modelexport.hierarchy import CallId, CallTree, ModuleCall, ModuleTree
from modelexport.torch_support.private_fx import serial_of


@dataclasses.dataclass(frozen=True)
class ProgramCalls:
    """The module calls of a program.

    Attributes:
        owners: The call that ran each node, where it is recorded.
        unseen: The nodes whose call only torch's own record names: no hook saw it.
        notes: What evidence was lost.
        calls: The calls in the order in which they began, without boundary tensors.
    """

    owners: Mapping[torch.fx.Node, CallId]
    calls: CallTree
    unseen: frozenset[torch.fx.Node] = frozenset()
    notes: tuple[str, ...] = ()


def find_calls(program: torch.export.ExportedProgram, recorder: TraceRecorder, tree: ModuleTree) -> ProgramCalls:
    """Find the module calls of a program that was traced while `recorder` watched, or that nothing watched."""
    finder = _CallFinder(program, recorder, tree)
    owning = owning_nodes(program.graph_module)
    nodes = dict.fromkeys(nodes_in_order(program.graph, owning))
    # Subgraphs that no node runs.
    nodes |= dict.fromkeys(node for _, graph in program_graphs(program) for node in graph.nodes)
    found = {node: finder.call_of(node) for node in nodes}
    owners = {node: call for node, call in found.items() if call is not None}
    ran = [node for node in owners if node.op == "call_function"]
    lost = sum(node in finder.unseen for node in ran) if recorder.last_pass is not None else 0
    note = (
        f"the module calls of {lost} of {len(ran)} operators were not seen: their owners come from torch's own record"
    )
    return ProgramCalls(owners, finder.calls(), frozenset(finder.unseen), (note,) if lost else ())


class _CallFinder:
    """Finds the calls of nodes, and numbers the calls that no hook saw in the order in which it meets them."""

    def __init__(self, program: torch.export.ExportedProgram, recorder: TraceRecorder, tree: ModuleTree) -> None:
        self._recorder = recorder
        self._tree = tree
        self._pass = recorder.last_pass if recorder.last_pass is not None else ForwardPass(tracer=None)
        watched = self._pass.calls.values()
        self._calls = {call.id: ModuleCall(call.id.path, call.id.index, call.parent) for call in watched}
        self._by_scope = {call.scope: call.id for call in watched if call.scope is not None}
        self._by_generated: dict[tuple[str, str], CallId] = {}
        self._first_nodes = {call.id: call.first_node for call in watched}
        self._counts = Counter(call.path for call in self._calls)
        self._owning = owning_nodes(program.graph_module)
        self.unseen: set[torch.fx.Node] = set()

    def call_of(self, node: torch.fx.Node) -> CallId | None:
        """Return the call that ran `node`, or None where nothing recorded it."""
        generated = self._recorder.generated.find(node)
        if generated is not None:
            owner = self._pass.owner(generated.serial) if generated.serial is not None else None
            return owner or self._call_of_generated(generated, node)
        if self._recorder.last_pass is None and node.graph in self._owning:
            # Without hooks there is no evidence of the modules that ran in a subgraph.
            return None
        return self._call_of_traced(node)

    def calls(self) -> CallTree:
        """Return all calls in the order in which they began."""
        # A call that no hook saw began at the node that runs its subgraph.
        last = len(self._pass.nodes)
        order = sorted(self._calls, key=lambda c: (self._first_nodes.get(c, last), c not in self._pass.calls))
        return CallTree({call: self._calls[call] for call in order})

    def _call_of_generated(self, generated: GeneratedNode, node: torch.fx.Node) -> CallId | None:
        """Return the innermost module call of the generated node's stack, or the call around the subgraph."""
        owning = self._owning.get(node.graph)
        call = self.call_of(owning) if owning is not None else self._call_of_traced(node)
        for entry in generated.stack:
            known = self._by_generated.get((generated.file, entry.key))
            if known is None:
                path = self._path_of(entry.key, entry.path)
                if path is None:
                    continue
                known = self._new_call(path, parent=call)
                self._by_generated[generated.file, entry.key] = known
                if (first := self._serial_of_owning_node(node)) is not None:
                    self._first_nodes[known] = first
            call = known
        return call

    def _serial_of_owning_node(self, node: torch.fx.Node) -> int | None:
        """Return the serial number of the node of the main graph that runs the subgraph of `node`."""
        while (owning := self._owning.get(node.graph)) is not None:
            node = owning
        own = serial_of(node)
        generated = self._recorder.generated.find(node) if own is None else None
        return generated.serial if generated is not None else own

    def _path_of(self, key: str, name: str) -> str | None:
        """Return the module of a stack entry: dynamo's keys contain the module's `id()`, the tracer's its name."""
        identity = key.partition("@")[0]
        if identity.isdigit():
            return self._recorder.paths_by_id.get(int(identity))
        return self._tree.canonical(name)

    def _call_of_traced(self, node: torch.fx.Node) -> CallId | None:
        serial = serial_of(node)
        if serial is not None and (owner := self._pass.owner(serial)) is not None:
            return owner
        self.unseen.add(node)
        return self._call_of_stack(node)

    def _call_of_stack(self, node: torch.fx.Node) -> CallId | None:
        """Return the innermost entry of `nn_module_stack` that is a module of the tree; torch has other entries too."""
        call: CallId | None = None
        for entry in read_module_stack(node):
            path = self._tree.canonical(entry.path)
            if path is None:
                continue
            scope = (entry.path, entry.index)
            if scope not in self._by_scope:
                # No hook saw this call.
                self._by_scope[scope] = self._new_call(path, parent=call)
            call = self._by_scope[scope]
        return call

    def _new_call(self, path: str, parent: CallId | None) -> CallId:
        call = CallId(path, self._counts[path])
        self._counts[path] += 1
        self._calls[call] = ModuleCall(path, call.index, parent)
        return call
