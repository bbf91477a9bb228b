"""Conflicts between the owners of nodes and the subgraphs of branches and loops: a call runs in one subgraph."""

from __future__ import annotations

from collections.abc import Iterator

from modelexport.analysis.contamination.call_index import CallIndex, Conflict, NodeOwners
from modelexport.graph import NO_NODE, FlowGraph

# How many nodes of a call, and how many consumers of a constant, are compared.
_MAX_COMPARED = 32


class SubgraphRules:
    """The rules for files with subgraphs."""

    def __init__(self, flow: FlowGraph, calls: CallIndex) -> None:
        self.flow = flow
        self.calls = calls
        self._subgraph_nodes: dict[int, list[int]] = {}
        for node, owning_node in enumerate(flow.owning_nodes):
            if owning_node != NO_NODE:
                self._subgraph_nodes.setdefault(owning_node, []).append(node)

    def conflicts(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """The conflicts with the owner of a node, given the owners of all others."""
        yield from self._outside_owning_call(node, owners)
        yield from self._in_another_subgraph(node, owners)

    def _outside_owning_call(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """The nodes of a subgraph run inside the call of the owning node."""
        pairs = [(inner, node) for inner in self._subgraph_nodes.get(node, ())]
        if self.flow.owning_nodes[node] != NO_NODE:
            pairs.append((node, self.flow.owning_nodes[node]))
        for inner, outer in pairs:
            if not any(self.calls.encloses(call, owners.owner(inner)) for call in owners.calls_of(outer)):
                yield Conflict(
                    (inner, outer),
                    f"{self.flow.node_ids[inner]!r} is in a subgraph of {self.flow.node_ids[outer]!r}, "
                    "and its owner did not run inside the owner of that node",
                )

    def _in_another_subgraph(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """The nodes of a call are in one subgraph; a constant of the call is consumed there, or where it is visible."""
        uses = self._uses(node) if self._is_constant(node) else None
        if uses is not None and (not uses or owners.contributors[node]):
            # A merged constant stays with the first call, also if that call's own use was folded.
            return
        for call in self.calls.with_callers(owners.owner(node)):
            others = [
                other
                for other in owners.recorded_nodes(call)[:_MAX_COMPARED]
                if other != node and not self._is_constant(other)
            ]
            if uses is None:
                apart = [other for other in others if not self._may_share_a_call(node, other, call, owners)]
            else:
                # Exporters move constants out of subgraphs, and a subgraph can capture what is outside.
                apart = [other for other in others if not any(self._is_visible(other, u, call, owners) for u in uses)]
            if len(apart) > len(others) / 2:
                where = "another subgraph" if uses is None else "another subgraph than its consumers"
                other_id = self.flow.node_ids[apart[0]]
                yield Conflict((node,), f"the nodes of {self.calls.ids[call]} are in {where}: {other_id!r}")
                return

    def _is_constant(self, node: int) -> bool:
        return all(self.flow.is_constant[tensor] for tensor in self.flow.node_outputs[node])

    def _uses(self, node: int) -> list[int]:
        """The first consumers behind a constant node that are not constant themselves."""
        found: dict[int, None] = {}
        seen, waiting = {node}, [node]
        while waiting and len(found) < _MAX_COMPARED:
            for tensor in self.flow.node_outputs[waiting.pop()]:
                for consumer in self.flow.consumers[tensor]:
                    if consumer in seen:
                        continue
                    seen.add(consumer)
                    if self._is_constant(consumer):
                        waiting.append(consumer)
                    else:
                        found[consumer] = None
        return list(found)

    def _is_visible(self, source: int, use: int, call: int, owners: NodeOwners) -> bool:
        """Whether a constant computed in the graph of `source` can be captured in the graph of `use`."""
        inner = use
        while inner != NO_NODE:
            if self.flow.graph_numbers[inner] == self.flow.graph_numbers[source]:
                return True
            inner = self.flow.owning_nodes[inner]
        return self._may_share_a_call(source, use, call, owners)

    def _may_share_a_call(self, node: int, other: int, call: int, owners: NodeOwners) -> bool:
        """Whether both are in one graph, or one is in a subgraph that a node of the call owns."""
        graphs = self.flow.graph_numbers
        if graphs[node] is None or graphs[other] is None or graphs[node] == graphs[other]:
            return True
        for inner, outer in ((node, other), (other, node)):
            owning_node = self.flow.owning_nodes[inner]
            while owning_node != NO_NODE and self.calls.encloses(call, owners.owner(owning_node)):
                if graphs[owning_node] == graphs[outer]:
                    return True
                owning_node = self.flow.owning_nodes[owning_node]
        return False
