"""Shared nodes: further calls of a node, where the exporter merged equal nodes of several calls.

In PyTorch a call consumes and returns its inputs and values that it or its callees computed. A call that consumes or
returns a value of another call that is not one of its inputs computed an equal value itself, and the exporter kept one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from modelexport.hierarchy import Attribution, CallId, CallTree, TensorInfo, confidence


def with_sharers(
    graph: ir.Graph,
    recorded: Mapping[ir.Node, CallId],
    calls: CallTree,
    lost_nodes: Collection[CallId],
    lost_constants: Mapping[ir.Node, Collection[CallId]],
    infos: Mapping[str, TensorInfo],
) -> dict[ir.Node, Attribution]:
    """The attribution of each node with a recorded call, with the calls that shared it.

    `lost_nodes` are the calls with nodes that were merged into equal ones of other calls. Another call that returns a
    value it did not compute has stored it earlier. `lost_constants` has for a constant the calls with an equal one that
    was merged into it. `infos` has shape and type of tensors, where they are known.
    """
    finder = _SharerFinder(calls, lost_nodes)
    sharers: dict[ir.Node, set[CallId]] = {}
    for node in reversed(graph):
        owner = recorded.get(node)
        if owner is None:
            continue
        found: set[CallId] = set()
        for value in node.outputs:
            found |= finder.returning(value.name, owner)
            info = infos.get(value.name or "")
            for use in value.uses():
                consumer = recorded.get(use.node)
                # A call that shares the consumer computed the consumer's inputs too.
                for call in (*(() if consumer is None else (consumer,)), *sharers.get(use.node, ())):
                    found |= finder.consuming(value.name, call, owner, info, lost_constants.get(node, lost_nodes))
        sharers[node] = found
    own = {node: confidence.recorded_by_exporter(call) for node, call in recorded.items()}
    return own | {node: confidence.merged(own[node], found) for node, found in sharers.items() if found}


class _SharerFinder:
    def __init__(self, calls: CallTree, lost_nodes: Collection[CallId]) -> None:
        self._calls = calls
        self._lost_nodes = lost_nodes
        self._chains = {call.id: frozenset(calls.chain(call.id)) for call in calls}
        self._inputs = {call.id: {tensor.tensor for tensor in call.inputs} for call in calls}
        # Shape and type of the inputs whose tensors are not known.
        self._unknown = {call.id: [tensor.info for tensor in call.inputs if tensor.tensor is None] for call in calls}
        self._outputs = {call.id: {tensor.tensor for tensor in call.outputs} for call in calls}
        self._returned: dict[str | None, set[CallId]] = {}
        for call in calls:
            for tensor in call.outputs:
                self._returned.setdefault(tensor.tensor, set()).add(call.id)

    def returning(self, tensor: str | None, owner: CallId) -> set[CallId]:
        """The calls that return the tensor although it is not among their inputs."""
        returned = self._returned.get(tensor, set())
        # A call that returns a callee's result did not compute it.
        callers = {caller for call in returned for caller in self._chains[call] - {call}}
        return {
            call
            for call in returned - callers
            if call in self._lost_nodes
            and self._is_apart(call, owner)
            and self._inputs[call].isdisjoint({tensor, None})
        }

    def consuming(
        self, tensor: str | None, consumer: CallId, owner: CallId, info: TensorInfo | None, lost: Collection[CallId]
    ) -> set[CallId]:
        """The call that computed an equal tensor for the consumer; none where the consumer got it from the owner.

        `lost` are the calls that may have lost the node that computed it.
        """
        if owner in self._chains[consumer]:
            return self._consuming_inside(tensor, consumer, owner, info, lost)
        call: CallId | None = consumer
        while call is not None and owner not in self._chains[call]:
            if call in self._chains[owner]:
                # A caller of the owner has its results, not its intermediate values.
                returned = self._outputs[self._callee(call, owner)]
                return set() if tensor in returned or None in returned else {call}
            if tensor not in self._inputs[call]:
                return set() if self._may_be_input(tensor, call, owner, info) else {call}
            call = self._calls[call].parent
        return set()

    def _consuming_inside(
        self, tensor: str | None, consumer: CallId, owner: CallId, info: TensorInfo | None, lost: Collection[CallId]
    ) -> set[CallId]:
        """The same for a consumer that the owner called, and that is known to have lost a node."""
        for call in self._calls.chain(consumer):
            if call == owner:
                break
            if tensor not in self._inputs[call]:
                may_have = call not in lost or self._may_be_input(tensor, call, owner, info)
                return set() if may_have else {call}
        return set()

    def _may_be_input(self, tensor: str | None, call: CallId, owner: CallId, info: TensorInfo | None) -> bool:
        """Whether a call may have got a tensor from others although it is not among its known inputs.

        A callee that returned it computed it. An input whose tensor is not known may be this one if shape and type
        fit, and if the owner returned it to its callers, who could pass it on.
        """
        if any(call in self._chains[other] for other in self._returned.get(tensor, ())):
            return True
        if owner not in self._chains[call]:
            around = next(caller for caller in self._calls.chain(owner) if caller in self._chains[call])
            returned = self._outputs[self._callee(around, owner)]
            if tensor not in returned and None not in returned:
                return False
        return any(info is None or other is None or other == info for other in self._unknown[call])

    def _callee(self, caller: CallId, call: CallId) -> CallId:
        """The call that `caller` made and that `call` is, or ran inside of."""
        chain = self._calls.chain(call)
        return chain[chain.index(caller) - 1]

    def _is_apart(self, call: CallId, owner: CallId) -> bool:
        """Whether neither of the two ran inside the other."""
        return call not in self._chains[owner] and owner not in self._chains[call]
