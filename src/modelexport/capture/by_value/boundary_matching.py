"""The inputs and outputs of module calls as tensors of an ONNX graph, where the graph has them in the same layout."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from modelexport.capture.by_value.eager_graph import EagerRun, RecordedTensor
from modelexport.capture.by_value.operator_matching import OperatorMatching
from modelexport.graph import Fingerprint
from modelexport.hierarchy import Attribution, BoundaryTensor, CallId, CallTree, ModuleCall


def calls_with_boundaries(
    run: EagerRun,
    calls: CallTree,
    matching: OperatorMatching,
    tensors: Mapping[str, Fingerprint],
    owners: Mapping[ir.Node, Attribution],
) -> CallTree:
    """The calls of an eager run, with the tensors of the graph matched to it that entered and left them."""
    by_number: dict[int, list[ir.Value]] = {}
    for value, numbers in matching.found.items():
        for number in numbers:
            by_number.setdefault(number, []).append(value)

    def has_layout(value: ir.Value, recorded: RecordedTensor) -> bool:
        own, known = tensors.get(value.name or ""), run.fingerprints[recorded.value]
        return own is not None and known is not None and own.same_layout(known)

    def is_inside(value: ir.Value, call: CallId) -> bool:
        """Whether a node of the call computes the tensor."""
        producer = value.producer()
        return producer is not None and calls.encloses(call, owners[producer].owner)

    def crosses(value: ir.Value, call: CallId, leaving: bool) -> bool:
        """Whether the tensor is consumed outside the call (`leaving`), or inside of it."""
        inside = [calls.encloses(call, owners[use.node].owner) for use in value.uses()]
        return (leaving and value.is_graph_output()) or any(consumer is not leaving for consumer in inside)

    def found(recorded: RecordedTensor, call: CallId, leaving: bool) -> BoundaryTensor:
        # Of equal tensors: an output is computed inside the call and consumed outside, an input the other way round.
        best = min(
            (value for value in by_number.get(recorded.value, ()) if has_layout(value, recorded)),
            key=lambda value: (
                not matching.is_produced_as(value, recorded.value),
                is_inside(value, call) != leaving,
                not crosses(value, call, leaving),
                len(matching.found[value]),
            ),
            default=None,
        )
        return BoundaryTensor(recorded.name, best.name if best is not None else None, recorded.info)

    complete: dict[CallId, ModuleCall] = {}
    for id_, call in run.calls.items():
        inputs = tuple(found(tensor, id_, False) for tensor in call.inputs)
        outputs = tuple(found(tensor, id_, True) for tensor in call.outputs)
        complete[id_] = ModuleCall(id_.path, id_.index, call.parent, inputs, outputs)
    return CallTree(complete)
