"""The module call that each node and weight of two compared models is counted with, also where a file does not say."""

from __future__ import annotations

import math
from collections import Counter

from modelexport.analysis.comparison.model_index import ABSENT, Outline, tensor_bytes
from modelexport.analysis.comparison.node_matching import Matching
from modelexport.hierarchy import ROOT_PATH, parent_path

# Calls within calls beyond this count as the root's.
_DEEPEST = 200


class Ownership:
    """Owners of the nodes of both models.

    A node whose owner its file does not name is counted with its partner's call; without a partner, with the call of
    the node whose tensor it now makes; else with the innermost call around those that read its results, or around
    those whose results it reads.

    Attributes:
        before: The call of each node of the first model.
        after: The call of each node of the second.
    """

    def __init__(self, matching: Matching) -> None:
        first, second = matching.before, matching.after
        self._parents: dict[str, str | None] = {}
        self._classes: dict[str, str] = {}
        self._call_tags: dict[str, str] = {}
        for side in (second, first):
            self._learn(side)
        self.before = self._complete(first, second, matching.to_after)
        self.after = self._complete(second, first, matching.to_before)
        self._first = first

    def class_of(self, call: str) -> str:
        """The class of the module that is called, empty where neither file says."""
        return self._classes.get(_path(call), "")

    def tag_of(self, call: str) -> str:
        """The tag of a call, empty where neither file says."""
        return self._call_tags.get(call, "")

    def tags(self, side: Outline) -> Counter[str]:
        """How many nodes of a model carry each tag, as its file says; nodes without one have the empty tag."""
        if side.document is not None:
            return Counter(record.tag for record in side.document.nodes)
        counts = Counter(side.file.tag_counts())
        untagged = len(side) - sum(counts.values())
        return counts + Counter({"": untagged})

    def weights(self, side: Outline) -> dict[str, tuple[int, int]]:
        """Elements and bytes of the weights that each call takes; one that several take is that of the call around."""
        owners = self.before if side is self._first else self.after
        holders: dict[int, str] = {}
        for node, values in enumerate(side.inputs):
            for value in values:
                if value in side.tensors:
                    known = holders.get(value)
                    holders[value] = owners[node] if known is None else self._around(known, owners[node])
        found: dict[str, tuple[int, int]] = {}
        for value, tensor in side.tensors.items():
            call = holders.get(value, ROOT_PATH)
            elements, size = found.get(call, (0, 0))
            found[call] = elements + math.prod(tensor.dims), size + tensor_bytes(tensor)
        return found

    def _learn(self, side: Outline) -> None:
        document = side.document
        if document is not None:
            self._parents.update((call.id, call.parent) for call in document.calls)
            self._call_tags.update((call.id, call.tag) for call in document.calls)
            self._classes.update((module.path, module.class_name) for module in document.modules)
        else:
            self._call_tags.update((stored.module, stored.hierarchy_path) for stored in side.file.stored.values())

    def _complete(self, side: Outline, other: Outline, partners: list[int]) -> list[str]:
        found = list(side.owners)
        for node, owner in enumerate(found):
            if owner is None and partners[node] >= 0:
                found[node] = other.owners[partners[node]]
        open_nodes = [node for node in side.order if found[node] is None]
        if open_nodes:
            self._complete_unpaired(side, other, found, open_nodes)
        return [owner if owner is not None else ROOT_PATH for owner in found]

    def _complete_unpaired(self, side: Outline, other: Outline, found: list[str | None], open_nodes: list[int]) -> None:
        makers = {
            other.names[value]: other.owners[node]
            for node, values in enumerate(other.outputs)
            for value in values
            if value != ABSENT and not other.places[node]
        }
        for node in open_nodes:
            if not side.places[node]:
                names = (side.names[value] for value in side.outputs[node] if value != ABSENT)
                found[node] = next((makers[name] for name in names if makers.get(name) is not None), None)
        for node in reversed(open_nodes):
            if found[node] is None:
                found[node] = self._around_all([found[reader] for reader, _, _ in side.readers[node]])
        for node in open_nodes:
            if found[node] is None:
                makers_of = [side.producers[value] for value in side.inputs[node] if value != ABSENT]
                found[node] = self._around_all([found[maker] for maker in makers_of if maker >= 0])

    def _around_all(self, calls: list[str | None]) -> str | None:
        around: str | None = None
        for call in calls:
            if call is not None:
                around = call if around is None else self._around(around, call)
        return around

    def _around(self, first: str, second: str) -> str:
        """The innermost call that both are, or ran inside of."""
        if first in (second, ROOT_PATH):
            return first
        outer = self._chain(first)
        return next((call for call in self._chain(second) if call in outer), ROOT_PATH)

    def _chain(self, call: str) -> dict[str, None]:
        """The call and those it ran inside of, innermost first."""
        chain: dict[str, None] = {}
        current: str | None = call
        # A sidecar may lie about who called whom: in circles, or without end.
        while current is not None and current not in chain and len(chain) < _DEEPEST:
            chain[current] = None
            known = current in self._parents
            current = self._parents[current] if known else parent_path(_path(current))
        return chain


def _path(call: str) -> str:
    path, separator, index = call.rpartition("@")
    return path if separator and index.isdigit() else call
