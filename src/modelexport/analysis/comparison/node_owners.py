"""The module call that owns each node and weight of two compared models, inferred if a file does not record it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from modelexport.analysis.comparison.model_index import ABSENT, ModelIndex
from modelexport.analysis.comparison.node_matching import NodeMatching
from modelexport.hierarchy import ROOT_PATH, CallId, parent_path
from modelexport.storage import content_bytes

# An untrusted sidecar can nest calls without end: callers beyond this depth are ignored.
_MAX_DEPTH = 200


class NodeOwners:
    """Owners of the nodes of both models.

    If its file does not record the owner of a node, the owner is that of its match; without a match, that of the
    node in the other model that produces a tensor of the same name; else the innermost call around the owners of
    its consumers, or of its producers.

    Attributes:
        before: The call of each node of the first model.
        after: The call of each node of the second.
        classes: The class of each module that a file records.
        call_tags: The tag of each call that a file records.
    """

    def __init__(self, matching: NodeMatching) -> None:
        first, second = matching.before, matching.after
        self._parents: dict[str, str | None] = {}
        self.classes: dict[str, str] = {}
        self.call_tags: dict[str, str] = {}
        for side in (second, first):
            self._add_hierarchy(side)
        self.before = self._complete(first, second, matching.to_after)
        self.after = self._complete(second, first, matching.to_before)
        self._first = first

    def tags(self, side: ModelIndex) -> Counter[str]:
        """The number of nodes by recorded tag; nodes without one have the empty tag."""
        if side.document is not None:
            return Counter(record.tag for record in side.document.nodes)
        counts = Counter(side.file.tag_counts())
        untagged = len(side) - sum(counts.values())
        return counts + Counter({"": untagged})

    def weights(self, side: ModelIndex) -> dict[str, tuple[int, int]]:
        """Elements and bytes of the weights of each call: the innermost one around all consumers owns a weight."""
        owners = self.before if side is self._first else self.after
        consumers: dict[int, dict[str | None, None]] = {}
        for node, values in enumerate(side.inputs):
            for value in values:
                if value in side.tensors:
                    consumers.setdefault(value, {})[owners[node]] = None
        found: dict[str, tuple[int, int]] = {}
        for value, tensor in side.tensors.items():
            call = self._innermost_common_of(consumers.get(value, ())) or ROOT_PATH
            elements, size = found.get(call, (0, 0))
            found[call] = elements + math.prod(tensor.dims), size + content_bytes(tensor)
        return found

    def _add_hierarchy(self, side: ModelIndex) -> None:
        document = side.document
        if document is not None:
            self._parents.update((call.id, call.parent) for call in document.calls)
            self.call_tags.update((call.id, call.tag) for call in document.calls)
            self.classes.update((module.path, module.class_name) for module in document.modules)
        else:
            self.call_tags.update((stored.module, stored.hierarchy_path) for stored in side.file.stored.values())

    def _complete(self, side: ModelIndex, other: ModelIndex, matches: list[int]) -> list[str]:
        found = list(side.owners)
        for node, owner in enumerate(found):
            if owner is None and matches[node] >= 0:
                found[node] = other.owners[matches[node]]
        unowned = [node for node in side.order if found[node] is None]
        if unowned:
            self._complete_unmatched(side, other, found, unowned)
        return [owner if owner is not None else ROOT_PATH for owner in found]

    def _complete_unmatched(
        self, side: ModelIndex, other: ModelIndex, found: list[str | None], unowned: list[int]
    ) -> None:
        owners_by_name = {
            other.names[value]: other.owners[node]
            for node, values in enumerate(other.outputs)
            for value in values
            if value != ABSENT and not other.graph_paths[node]
        }
        for node in unowned:
            if not side.graph_paths[node]:
                names = (side.names[value] for value in side.outputs[node] if value != ABSENT)
                found[node] = next((owner for name in names if (owner := owners_by_name.get(name)) is not None), None)
        for node in reversed(unowned):
            if found[node] is None:
                found[node] = self._innermost_common_of([found[consumer] for consumer, _, _ in side.consumers[node]])
        for node in unowned:
            if found[node] is None:
                sources = [side.producers[value] for value in side.inputs[node] if value != ABSENT]
                found[node] = self._innermost_common_of([found[source] for source in sources if source >= 0])

    def _innermost_common_of(self, calls: Iterable[str | None]) -> str | None:
        """The innermost call that is, or encloses, all of the known calls."""
        around: str | None = None
        for call in calls:
            if around is None:
                around = call
            elif call is not None and around not in (call, ROOT_PATH):
                outer = self._with_callers(around)
                around = next((caller for caller in self._with_callers(call) if caller in outer), ROOT_PATH)
        return around

    def _with_callers(self, call: str) -> dict[str, None]:
        """The call and its callers, innermost first."""
        chain: dict[str, None] = {}
        current: str | None = call
        # The callers of tags alone are not checked for cycles.
        while current is not None and current not in chain and len(chain) < _MAX_DEPTH:
            chain[current] = None
            known = current in self._parents
            current = self._parents[current] if known else parent_path(CallId.parse(current).path)
        return chain
