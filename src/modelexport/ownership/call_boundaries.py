"""The boundary tensors of module calls in a rewritten graph.

A boundary tensor that the rewriting removed may have a replacement. An optimizer that removes a node (an expansion
before a broadcast, the first of two reshapes) connects the consumers of its output to another tensor. Where each
consumer does the same operation with the same other inputs, the removed tensor can be fed in place of that tensor
without changing the results. So a module with that argument can still be extracted, with the argument as its input.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec
import onnx_ir as ir

from modelexport.graph import same_constant
from modelexport.hierarchy import Attribution, BoundaryTensor, CallId, CallTree, ModuleCall
from modelexport.ownership.value_correspondence import ValueCorrespondence, same_operation

_MAX_CONSTANT_BYTES = 1024

# A consumer and the index of its input.
Use = tuple[ir.Node, int]


class BoundaryProjector:
    """Projects the boundaries of module calls, from tensors of the original graph to those of the rewritten one."""

    def __init__(
        self,
        calls: CallTree,
        values: ValueCorrespondence,
        original_owners: Mapping[ir.Node, Attribution],
        owners: Mapping[ir.Node, Attribution],
    ) -> None:
        self._values = values
        self._calls = calls
        self._original_owners = original_owners
        self._owners = owners

    @functools.cached_property
    def _original_nodes(self) -> dict[CallId, set[ir.Node]]:
        return _nodes_by_call(self._calls, self._original_owners)

    @functools.cached_property
    def _rewritten_nodes(self) -> dict[CallId, set[ir.Node]]:
        return _nodes_by_call(self._calls, self._owners)

    def projected(self, call: ModuleCall) -> ModuleCall:
        """The call with its boundary in the rewritten graph."""
        inputs = tuple(self._projected_input(call.id, tensor) for tensor in call.inputs)
        outputs = tuple(self._projected(tensor) for tensor in call.outputs)
        return msgspec.structs.replace(call, inputs=inputs, outputs=outputs)

    def _projected(self, tensor: BoundaryTensor) -> BoundaryTensor:
        found = self._values.tensor(tensor.tensor) if tensor.tensor is not None else None
        return BoundaryTensor(tensor.name, found, tensor.info)

    def _projected_input(self, call: CallId, tensor: BoundaryTensor) -> BoundaryTensor:
        found = self._projected(tensor)
        if found.tensor is not None:
            return found
        replacement = self._replacement(call, tensor)
        return msgspec.structs.replace(found, stand_in=replacement.name if replacement is not None else None)

    def _replacement(self, call: CallId, tensor: BoundaryTensor) -> ir.Value | None:
        """The value that the call's nodes consume in place of an argument that the rewritten graph does not have."""
        name = tensor.tensor or tensor.stand_in
        if name is None or name not in self._values.original_values:
            return None
        value = self._values.original_values[name]
        uses = list(self._values.consumers(value))
        if tensor.tensor is None:
            # The original graph has a replacement itself. Other calls may consume it for its own sake.
            uses = [use for use in uses if use[0] in self._original_nodes.get(call, ())]
        elif value.is_graph_output():
            return None
        counterparts = [self._counterpart(use, value) for use in uses]
        consumed = {node.inputs[index] for node, index in filter(None, counterparts)}
        if None in counterparts or len(consumed) != 1:
            return None
        replacement = consumed.pop()
        if replacement is None:
            return None
        # Every use of it in the call must replace a use of the argument.
        own = self._rewritten_nodes.get(call, ())
        if any(use.node in own and (use.node, use.idx) not in counterparts for use in replacement.uses()):
            return None
        return replacement

    def _counterpart(self, use: Use, removed: ir.Value) -> Use | None:
        """The same use in the rewritten graph: the same operation, with the same other inputs and output."""
        node, index = use
        for output in node.outputs:
            value = self._values.rewritten_values.get(self._values.surviving.get(output.name or "", ""))
            found = value.producer() if value is not None else None
            if found is not None and same_operation(found, node):
                pairs = zip(node.inputs, found.inputs, strict=True)
                others = [(one, own) for one, own in pairs if not self._values.is_same(one, removed)]
                return (found, index) if all(self._is_same_input(*pair) for pair in others) else None
        return None

    def _is_same_input(self, original: ir.Value | None, own: ir.Value | None) -> bool:
        if original is None or own is None:
            return original is own
        same = self._values.rewritten_values.get(self._values.tensor(original.name or "") or "")
        return same is own or same_constant(original, own, _MAX_CONSTANT_BYTES)


def _nodes_by_call(calls: CallTree, owners: Mapping[ir.Node, Attribution]) -> dict[CallId, set[ir.Node]]:
    """The nodes of each call, those of its callees included."""
    found: dict[CallId, set[ir.Node]] = {}
    for node, attribution in owners.items():
        for call in (attribution.owner, *attribution.contributors):
            for outer in calls.chain(call):
                found.setdefault(outer, set()).add(node)
    return found
