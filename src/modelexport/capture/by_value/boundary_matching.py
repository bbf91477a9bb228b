"""The inputs and outputs of module calls as tensors of an ONNX graph, where the graph has them in the same layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from modelexport.capture.by_value.eager_graph import EagerRun, RecordedTensor
from modelexport.capture.by_value.operator_matching import OperatorMatching
from modelexport.graph import Fingerprint
from modelexport.hierarchy import Attribution, BoundaryTensor, CallId, CallTree, ModuleCall


class BoundaryMatching:
    """Finds the tensors of a graph that entered and left the calls of an eager run.

    Args:
        run: The eager run.
        calls: Its module calls.
        matching: The graph, matched to the run.
        tensors: The fingerprints of the graph's tensors, by name.
        owners: The attribution of every node of the graph.
    """

    def __init__(
        self,
        run: EagerRun,
        calls: CallTree,
        matching: OperatorMatching,
        tensors: Mapping[str, Fingerprint],
        owners: Mapping[ir.Node, Attribution],
    ) -> None:
        self._run = run
        self._calls = calls
        self._matching = matching
        self._tensors = tensors
        self._owners = owners
        self._by_number: dict[int, list[ir.Value]] = {}
        for value, numbers in matching.found.items():
            for number in numbers:
                self._by_number.setdefault(number, []).append(value)

    def calls_with_boundaries(self) -> CallTree:
        """The calls with their inputs and outputs."""
        return CallTree(
            {
                call.id: ModuleCall(
                    call.id.path,
                    call.id.index,
                    call.parent,
                    self._boundary(call.inputs, call.id, leaving=False),
                    self._boundary(call.outputs, call.id, leaving=True),
                )
                for call in self._run.calls.values()
            }
        )

    def _boundary(
        self, recorded: Iterable[RecordedTensor], call: CallId, *, leaving: bool
    ) -> tuple[BoundaryTensor, ...]:
        return tuple(self._boundary_tensor(tensor, call, leaving=leaving) for tensor in recorded)

    def _boundary_tensor(self, recorded: RecordedTensor, call: CallId, *, leaving: bool) -> BoundaryTensor:
        candidates = [value for value in self._by_number.get(recorded.value, ()) if self._has_layout(value, recorded)]
        # Of equal tensors: an output is computed inside the call and consumed outside, an input the other way round.
        best = min(
            candidates,
            key=lambda value: (
                not self._matching.is_produced_as(value, recorded.value),
                self._is_inside(value, call) != leaving,
                not self._crosses(value, call, leaving=leaving),
                len(self._matching.found[value]),
            ),
            default=None,
        )
        return BoundaryTensor(recorded.name, best.name if best is not None else None, recorded.info)

    def _has_layout(self, value: ir.Value, recorded: RecordedTensor) -> bool:
        own, known = self._tensors.get(value.name or ""), self._run.fingerprints[recorded.value]
        return own is not None and known is not None and own.same_layout(known)

    def _is_inside(self, value: ir.Value, call: CallId) -> bool:
        """Whether a node of the call computes the tensor."""
        producer = value.producer()
        return producer is not None and self._calls.encloses(call, self._owners[producer].owner)

    def _crosses(self, value: ir.Value, call: CallId, *, leaving: bool) -> bool:
        """Whether the tensor is consumed outside the call (`leaving`), or inside of it."""
        inside = [self._calls.encloses(call, self._owners[use.node].owner) for use in value.uses()]
        return (leaving and value.is_graph_output()) or any(consumer is not leaving for consumer in inside)
