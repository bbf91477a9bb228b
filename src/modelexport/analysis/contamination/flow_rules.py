"""Conflicts between the owners of nodes and the data flow at the boundaries of calls.

The inputs and outputs of each call were recorded when the model ran, independently of the owners of nodes; the graph
shows which node consumes which tensor. A node with a wrong owner consumes tensors that are not inputs of that call,
produces tensors that are not outputs of it, and is missing from the call that ran it. No rule depends on the name of an
operator, node or module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from modelexport.analysis.contamination.call_index import (
    ROOT,
    BoundaryTensors,
    CallIndex,
    Conflict,
    NodeOwners,
    modules_by_weight,
    modules_with_missing_weights,
    same_elements,
)
from modelexport.analysis.contamination.subgraph_rules import SubgraphRules
from modelexport.graph import ELEMENT_TYPES, NO_NODE, FlowGraph
from modelexport.hierarchy import ModuleRecord, contains

_INTEGER_TYPES = frozenset(e for n, e in ELEMENT_TYPES.items() if n == "bool" or n.startswith(("int", "uint")))


class RunEvidence(Protocol):
    """Evidence from a run of the model: which calls computed the values of each node.

    `candidates` may own a node; `computed_by` are those of them that did not only return its outputs unchanged.
    """

    def conflicts(self, node: int, owners: NodeOwners) -> Iterator[Conflict]: ...
    def candidates(self, node: int) -> Iterable[int]: ...
    def computed_by(self, node: int) -> Sequence[int]: ...


class FlowRules:
    """The rules for one file; owners are an argument, so that others than the recorded ones can be checked.

    Without evidence from a run of the model, the file alone is used.
    """

    def __init__(
        self, flow: FlowGraph, calls: CallIndex, modules: Sequence[ModuleRecord], run: RunEvidence | None = None
    ) -> None:
        self.flow = flow
        self.calls = calls
        self.run = run
        # The calls that return each tensor.
        self.returned_by: dict[int, list[int]] = {}
        for call, outputs in enumerate(calls.recorded_outputs):
            for tensor in outputs.tensors:
                self.returned_by.setdefault(tensor, []).append(call)
        self._weight_modules = modules_by_weight(flow, modules)
        self._missing_weights = modules_with_missing_weights(flow, modules)
        self._paths = [record.path for record in calls.records]
        self._called = set(self._paths)
        self._before_call: dict[int, set[int]] = {}
        self._reached_calls: dict[tuple[tuple[int, ...], int], set[int]] = {}
        self._subgraph_rules = SubgraphRules(flow, calls) if any(flow.graph_numbers) else None
        # Constants and sizes may be Python numbers in PyTorch: these cross the boundaries of calls unrecorded.
        self._unrecorded = [
            flow.is_constant[tensor] or self._may_be_python_number(tensor) for tensor in range(len(flow.tensor_names))
        ]

    def _may_be_python_number(self, tensor: int) -> bool:
        """Whether the tensor may be a size, an index or a list of them, which PyTorch keeps as Python integers."""
        tensor_type = self.flow.types.get(tensor)
        if tensor_type is None or tensor_type.shape == ():
            return True
        return tensor_type.element in _INTEGER_TYPES and (tensor_type.shape is None or len(tensor_type.shape) == 1)

    def conflicts(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """The conflicts with the owner of a node, given the owners of all others."""
        if self.run is not None:
            yield from self.run.conflicts(node, owners)
        yield from self._input_conflicts(node, owners)
        for tensor in self.flow.node_outputs[node]:
            for consumer in self.flow.consumers[tensor] if not self._unrecorded[tensor] else ():
                yield from self._unrecorded_flow(node, tensor, consumer, owners)
            yield from self._missing_in_returning_call(node, tensor, owners)
        yield from self._unused_constant(node, owners)
        yield from self._owner_without_consumer(node, owners)
        yield from self._interrupted_call(node, owners)
        yield from self._needed_before_call(node, owners)
        if self._subgraph_rules is not None:
            yield from self._subgraph_rules.conflicts(node, owners)
        if owners.is_common_caller[node] and not all(
            self.calls.encloses(owners.owner(node), other) for other in owners.contributors[node]
        ):
            yield Conflict((node,), "its owner is recorded as a common caller of its contributors, and is not")

    def _input_conflicts(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        for tensor in dict.fromkeys(self.flow.node_inputs[node]):
            producer = self.flow.producers[tensor]
            if tensor in self.flow.initializers:
                yield from self._foreign_weight(node, tensor, owners)
            elif tensor in self.flow.subgraph_inputs:
                continue
            elif not self._unrecorded[tensor]:
                if producer == NO_NODE and self._is_inferred_size(node, owners):
                    continue
                yield from self._unrecorded_flow(producer, tensor, node, owners)
            elif producer != NO_NODE:
                # A constant with one consumer: either of the two may have the wrong owner.
                unused = self._unused_constant(producer, owners)
                yield from (conflict for conflict in unused if node in conflict.nodes)

    def _is_inferred_size(self, node: int, owners: NodeOwners) -> bool:
        """Whether the node has an inferred owner and returns only numbers.

        Exporters read the size of an axis from an input of the model, for whichever call needs it.
        """
        return owners.is_inferred[node] and all(self._unrecorded[tensor] for tensor in self.flow.node_outputs[node])

    def _unrecorded_flow(self, producer: int, tensor: int, consumer: int, owners: NodeOwners) -> Iterator[Conflict]:
        """A tensor passes from call to call only as a recorded output of the one and a recorded input of the other."""
        sources = owners.calls_of(producer) if producer != NO_NODE else (ROOT,)
        targets = owners.calls_of(consumer)
        if self._may_flow(sources, tensor, targets):
            return
        if self.run is not None and producer != NO_NODE:
            if self._is_only_candidate(producer, owners) and self._is_only_candidate(consumer, owners):
                # Both owners are right: the tensor passed from one to the other in an attribute or a cache.
                return
            computed_by = self.run.computed_by(producer)
            # An exporter keeps one of several equal nodes; the values show which calls computed it.
            if computed_by and self._may_flow(computed_by, tensor, targets):
                return
        nodes = (producer, consumer) if producer != NO_NODE else (consumer,)
        source, target = (self.calls.ids[call] or "(root)" for call in (sources[0], targets[0]))
        yield Conflict(
            nodes,
            f"{self._name(tensor)} flows from {source} to {target}, "
            "and is not recorded as an output of the first and an input of the second",
        )

    def _may_flow(self, sources: Sequence[int], tensor: int, targets: Sequence[int]) -> bool:
        """Whether a tensor can pass from one of the calls to another: out of the first, and into the second."""
        reached = self._reached(tuple(sources), tensor)
        for target in targets:
            call = target
            while call not in reached and call != ROOT and self._may_cross(call, tensor, outward=False):
                call = self.calls.parents[call]
            if call in reached:
                return True
        return False

    def _reached(self, sources: tuple[int, ...], tensor: int) -> set[int]:
        """The calls that have a tensor which the sources computed, or received from the calls inside of them."""
        if len(sources) > 1 and (sources, tensor) in self._reached_calls:
            return self._reached_calls[sources, tensor]
        found: set[int] = set()
        for source in sources:
            call = source
            while call not in found:
                found.add(call)
                if call != ROOT and self._may_cross(call, tensor, outward=True):
                    call = self.calls.parents[call]
        if len(sources) > 1:
            # A mask may serve a hundred layers, and each of them consumes it.
            self._reached_calls[sources, tensor] = found
        return found

    def _may_cross(self, call: int, tensor: int, *, outward: bool) -> bool:
        """Whether the tensor, or its elements in another layout, can leave or enter a call."""
        calls = self.calls
        boundary = calls.outputs[call] if outward else calls.inputs[call]
        has_numbers = calls.returns_numbers[call] if outward else calls.takes_numbers[call]
        return (
            not calls.has_boundary[call]
            or boundary.may_contain(tensor, self.flow.types.get(tensor))
            or (has_numbers and self._unrecorded[tensor] and not self.flow.is_constant[tensor])
            or self._may_cross_in_other_layout(boundary, tensor)
        )

    def _may_cross_in_other_layout(self, boundary: BoundaryTensors, tensor: int) -> bool:
        """Whether a boundary may have the elements of the tensor in a layout that the graph lacks.

        A transpose or reshape on one side of a boundary and its inverse on the other side cancel out: the graph has
        only the tensor before the first, which is then the input of the nodes after the second. With a run of the
        model, boundaries have the tensors of the same values in any layout.
        """
        tensor_type = self.flow.types.get(tensor)
        return self.run is None and any(info and same_elements(info, tensor_type) for info in boundary.unnamed)

    def _missing_in_returning_call(self, node: int, tensor: int, owners: NodeOwners) -> Iterator[Conflict]:
        """An output of a call was computed inside it, or is one of its inputs."""
        if self.flow.is_constant[tensor] or (self.run is not None and owners.owner(node) in self.run.computed_by(node)):
            # A constant may come from any call; and if two calls computed the same, one node may represent both.
            return
        for call in self.returned_by.get(tensor, ()):
            if not self._may_return_input(call, node, tensor, owners) and not any(
                self.calls.encloses(call, other) for other in owners.calls_of(node)
            ):
                name = self.calls.ids[call]
                yield Conflict(
                    (node,),
                    f"{self._name(tensor)} is an output of {name} and not one of its inputs, so {name} computed it",
                )

    def _may_return_input(self, call: int, node: int, tensor: int, owners: NodeOwners) -> bool:
        """Whether the call may return one of its inputs as this tensor; an input may have no name in the graph."""
        tensor_type = self.flow.types.get(tensor)
        inputs = self.calls.inputs[call]
        if tensor in inputs.tensors or not owners.contributors[node] or not owners.is_shared[node]:
            return inputs.may_contain(tensor, tensor_type)
        # The inner tensors of fused calls have no name either. This one must then be an output of its owner too.
        outputs = self.calls.outputs[owners.owner(node)]
        return inputs.may_contain(tensor, tensor_type) and outputs.may_contain(tensor, tensor_type)

    def _foreign_weight(self, node: int, tensor: int, owners: NodeOwners) -> Iterator[Conflict]:
        """A weight is consumed by its own module, by a caller that accesses it, or by a call that received it."""
        modules = self._weight_modules.get(tensor)
        if not modules or self._is_scalar(tensor):
            return
        for call in owners.calls_of(node):
            path = self._paths[call]
            if any(contains(module, path) for module in modules):
                return
            if any(contains(path, module) for module in modules):
                if (
                    len(modules) > 1
                    or modules[0] not in self._called
                    or self._is_consumed_inside(modules[0], tensor, owners)
                    or self._may_have_merged_weight(path, tensor)
                ):
                    return
                yield Conflict(
                    (node,),
                    f"it consumes {self._name(tensor)}, a weight of {modules[0]}, "
                    "which ran and has no node that consumes it",
                )
                return
            if self._may_flow((self._nearest_caller_with(modules, call),), tensor, (call,)):
                return
            if self._may_have_merged_weight(path, tensor):
                return
        if any(self._is_consumed_inside(module, tensor, owners) for module in modules):
            # Its own modules consume it. The others may have had a constant with the same content.
            return
        yield Conflict(
            (node,),
            f"it consumes {self._name(tensor)}, a weight of {modules[0] or '(root)'}, "
            "which its owner neither contains nor received as an input",
        )

    def _nearest_caller_with(self, modules: Sequence[str], call: int) -> int:
        """The innermost call around this one whose module contains one of these, and so can access their weights."""
        found = (
            c for c in self.calls.with_callers(call) if any(contains(self._paths[c], module) for module in modules)
        )
        return next(found, ROOT)

    def _is_consumed_inside(self, path: str, tensor: int, owners: NodeOwners) -> bool:
        """Whether a node of the module, or of a module inside it, consumes the weight."""
        return any(
            contains(path, self._paths[call])
            for consumer in self.flow.consumers[tensor]
            for call in owners.calls_of(consumer)
        )

    def _is_scalar(self, tensor: int) -> bool:
        """Whether a weight has one element: exporters merge such a weight with any equal constant."""
        tensor_type = self.flow.types.get(tensor)
        return (
            tensor_type is not None and tensor_type.shape is not None and all(size == 1 for size in tensor_type.shape)
        )

    def _may_have_merged_weight(self, path: str, tensor: int) -> bool:
        """Whether the exporter may have merged a weight of this module, or of one inside it, with an equal one."""
        tensor_type = self.flow.types.get(tensor)
        modules = self._missing_weights.get(tensor_type, ()) if tensor_type is not None else ()
        return any(contains(path, module) or contains(module, path) for module in modules)

    def _unused_constant(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """A constant or size may be shared between calls, but at least one consumer can receive it from its owner."""
        outputs = self.flow.node_outputs[node]
        if not outputs or not all(self._unrecorded[tensor] for tensor in outputs):
            return
        uses = [(tensor, consumer) for tensor in outputs for consumer in self.flow.consumers[tensor]]
        if not uses or any(tensor in self.flow.graph_outputs for tensor in outputs):
            return
        sources = owners.calls_of(node)
        if not any(self._may_flow(sources, tensor, owners.calls_of(consumer)) for tensor, consumer in uses):
            # With several consumers, the wrong owner is that of the constant.
            nodes = (node, uses[0][1]) if len(uses) == 1 else (node,)
            yield Conflict(nodes, f"no consumer of {self._name(outputs[0])} can receive it from its owner")

    def _interrupted_call(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """A call runs without interruption: no other call processes its tensors and returns them to it."""
        flow = self.flow
        node_calls = owners.calls_of(node)
        sources = {
            owners.owner(flow.producers[tensor]): tensor
            for tensor in flow.node_inputs[node]
            if not flow.is_constant[tensor] and flow.producers[tensor] != NO_NODE
        }
        targets = {
            owners.owner(consumer): None for tensor in flow.node_outputs[node] for consumer in flow.consumers[tensor]
        }
        for source, tensor in sources.items():
            for target in targets:
                outer = self.calls.common_caller((source, target))
                if outer != ROOT and not any(self.calls.encloses(outer, call) for call in node_calls):
                    yield Conflict(
                        (node,),
                        f"it consumes {self._name(tensor)}, computed in {self.calls.ids[outer]}, and its output is "
                        "consumed in that call again: a call runs without interruption",
                    )
                    return

    def _needed_before_call(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """A call computes nothing that its own inputs depend on: they exist before it begins."""
        call = owners.owner(node)
        if call == ROOT or owners.is_shared[node] or owners.is_inferred[node]:
            return
        consumers = [other for tensor in self.flow.node_outputs[node] for other in self.flow.consumers[tensor]]
        if all(self.calls.encloses(call, owners.owner(other)) for other in consumers):
            return
        if call not in self._before_call:
            self._before_call[call] = self.flow.nodes_before(self.calls.inputs[call].tensors)
        if node in self._before_call[call]:
            yield Conflict((node,), f"the inputs of {self.calls.ids[call]} depend on it, so it ran before that call")

    def _owner_without_consumer(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """The owner of a node that several calls share is one of them: it consumes or returns an output."""
        flow = self.flow
        outputs = flow.node_outputs[node]
        if not owners.contributors[node] or not owners.is_shared[node]:
            return
        if self._is_only_candidate(node, owners):
            return
        owner = (owners.owner(node),)
        if any(self._may_flow(owner, tensor, (ROOT,)) for tensor in outputs if tensor in flow.graph_outputs):
            return
        uses = [(tensor, consumer) for tensor in outputs for consumer in flow.consumers[tensor]]
        if not uses or any(self._may_flow(owner, tensor, owners.calls_of(consumer)) for tensor, consumer in uses):
            return
        if all(flow.is_constant[tensor] for tensor in outputs) and self._may_have_folded(owner[0], owners):
            # A merged constant stays with the first call, also if that call's own use was folded.
            return
        yield Conflict((node,), "no consumer of its outputs can receive them from its owner")

    def _may_have_folded(self, call: int, owners: NodeOwners) -> bool:
        """Whether the exporter may have folded nodes of a call: none is left, or one consumes an unnamed constant."""
        flow = self.flow
        inside = [
            node
            for node, inputs in enumerate(flow.node_inputs)
            if inputs and any(self.calls.encloses(call, other) for other in owners.calls_of(node))
        ]
        consumed = {tensor for node in inside for tensor in flow.node_inputs[node]}
        return not inside or any(flow.is_constant[t] and t not in self._weight_modules for t in consumed)

    def _is_only_candidate(self, node: int, owners: NodeOwners) -> bool:
        """Whether a run of the model shows that only the owner of a node can have computed it."""
        return self.run is not None and set(self.run.candidates(node)) == {owners.owner(node)}

    def _name(self, tensor: int) -> str:
        return repr(self.flow.tensor_names[tensor])
