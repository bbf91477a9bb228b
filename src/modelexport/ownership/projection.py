"""Projection of the owners and call boundaries of an original graph onto the graph it was rewritten into."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TypeVar

import onnx_ir as ir

from modelexport.hierarchy import Attribution, CallTree
from modelexport.ownership.call_boundaries import BoundaryProjector
from modelexport.ownership.inference import DEFAULT_POLICY, InferencePolicy, add_contexts, infer_missing
from modelexport.ownership.projected_nodes import NodeProjector
from modelexport.ownership.value_correspondence import ValueCorrespondence

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Projection:
    """Owners and call boundaries in the rewritten graph.

    Attributes:
        attributions: The owner of every node.
        original_calls: The module calls, with the boundary that each has in the original graph.
        constants: The initializers that nodes of the original main graph computed, with their owners.
        values: Which tensor of the rewritten graph is which of the original; None where both are the same graph.
        boundaries: Projects call boundaries; None where both are the same graph.
    """

    attributions: Mapping[ir.Node, Attribution]
    original_calls: CallTree
    constants: Mapping[str, Attribution] = dataclasses.field(default_factory=dict)
    values: ValueCorrespondence | None = None
    boundaries: BoundaryProjector | None = None

    @functools.cached_property
    def calls(self) -> CallTree:
        """The module calls, with the boundary that each has in the rewritten graph; found when first asked for."""
        if self.boundaries is None:
            return self.original_calls
        return CallTree({call.id: self.boundaries.projected(call) for call in self.original_calls})

    def renamed(self, by_tensor: Mapping[str, T]) -> dict[str, T]:
        """A mapping by tensors of the original main graph, keyed by their names in the rewritten one."""
        if self.values is None:
            return dict(by_tensor)
        names = {name: self.values.tensor(name) for name in by_tensor}
        return {name: by_tensor[original] for original, name in names.items() if name is not None}


def project(
    original: ir.Model,
    owners: Mapping[ir.Node, Attribution],
    rewritten: ir.Model,
    calls: CallTree,
    *,
    recorded: Mapping[ir.Node, Attribution] | None = None,
    policy: InferencePolicy = DEFAULT_POLICY,
    names: Mapping[ir.Value, str] | None = None,
) -> Projection:
    """Project the owners of `original` onto `rewritten`; neither graph is changed.

    Args:
        original: The original graph.
        owners: The attribution of every node of `original`.
        rewritten: The graph it was rewritten into.
        calls: The module calls, with boundary tensors of `original`.
        recorded: Attributions that were recorded for nodes of `rewritten` themselves; used for nodes that match no
            tensor of `original`.
        policy: How owners are inferred for the nodes that are left.
        names: For tensors of `rewritten` the names that the same tensors have in `original`; None where the tensors
            are the same if their names are.
    """
    values = ValueCorrespondence(original, rewritten, names)
    projector = NodeProjector(values, owners, calls, recorded or {})
    attributions = infer_missing(rewritten, projector.attributions(), calls, policy)
    if policy.advanced:
        attributions = add_contexts(rewritten, attributions)
    boundaries = BoundaryProjector(calls, values, owners, attributions)
    return Projection(attributions, calls, projector.folded_constants(), values, boundaries)
