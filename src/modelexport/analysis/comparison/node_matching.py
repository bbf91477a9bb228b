"""Match the nodes of two models by module and structure; names count last.

Each round computes keys for the nodes of both models and pairs nodes with equal keys. The keys of the first round
describe everything upstream and downstream of a node: they pair all nodes of two models with the same structure. Later
keys describe less: the node's module call, then what is upstream or downstream of it there, then its matched neighbors.
The last rounds pair nodes at the same position whose attributes, weights or operators differ.

Every round is linear in the number of nodes, and the number of rounds is fixed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from modelexport.analysis.comparison.model_index import ABSENT, Key, ModelIndex
from modelexport.analysis.comparison.node_keys import OMITTED, KeyedModel, Use

# In mapped inputs: a value whose producer has no match.
_UNMATCHED = -3
# How often matches are propagated to their neighbors after each round.
_MAX_PROPAGATIONS = 4
# A neighbor that more nodes than this share does not identify any of them.
_MAX_SHARED = 8


class NodeMatching:
    """The matched nodes of two models.

    Attributes:
        before: The first model.
        after: The second model.
        to_after: For each node of the first model its match, or -1.
        to_before: For each node of the second model its match, or -1.
        inputs: For each input of the first model its match in the second.
    """

    def __init__(self, before: ModelIndex, after: ModelIndex) -> None:
        self.before, self.after = before, after
        self.inputs = _match_inputs(before, after)
        table: dict[object, int] = {}
        # Module calls can be compared only if both models have a hierarchy.
        by_call = all(any(owner is not None for owner in side.owners) for side in (before, after))
        self._a = KeyedModel(before, table, {value: number for number, value in enumerate(self.inputs)}, by_call)
        self._b = KeyedModel(
            after, table, {value: number for number, value in enumerate(self.inputs.values())}, by_call
        )
        self.to_after, self.to_before = self._a.matches, self._b.matches
        self._pair_same_structure()
        if self._has_unmatched():
            self._pair_by_module()
            self._pair_changed()

    def _pair_same_structure(self) -> None:
        """Pair nodes with the same structure upstream and downstream in the whole model."""

        def keys(side: KeyedModel) -> list[int]:
            everywhere = [side.number(graph_path) for graph_path in side.index.graph_paths]
            nodes = side.index.order
            return side.downstream(nodes, side.upstream(nodes, side.kind, everywhere, side.source), everywhere)

        self._pair(keys)

    def _pair_by_module(self) -> None:
        """Pair nodes with the same structure in their module call, upstream or downstream.

        Keys that one model has more often than the other are paired last, after names.
        """
        nodes = self._nodes_of_unmatched_groups()
        upstream = {side: side.upstream(nodes[side], side.kind, side.group, side.source) for side in nodes}
        local = {side: side.local(nodes[side], side.kind, side.source) for side in nodes}
        downstream = {side: side.downstream(nodes[side], local[side], side.group) for side in nodes}
        for keys in (upstream, downstream):
            self._pair(keys.__getitem__, same_count_only=True)
        self._propagate()
        self._pair_by_names()
        for keys in (upstream, downstream):
            self._pair(keys.__getitem__)
        self._propagate()

    def _pair_by_names(self) -> None:
        """Pair nodes of one kind that produce a tensor of the same name: other tools keep most of these names."""

        def keys(side: KeyedModel) -> list[int]:
            found = [0] * len(side.kind)
            for node in side.unmatched():
                found[node] = side.number((side.kind[node], side.index.tensor_name(node)))
            return found

        if self._has_unmatched():
            self._pair(keys, accept=self._may_have_same_owner)
            self._propagate()

    def _pair_changed(self) -> None:
        """Pair nodes at the same position that differ: first in attributes and weights, then in the operator."""
        if not self._has_unmatched():
            return
        self._propagate_by(lambda s: s.operation, exact=False)
        nodes = self._nodes_of_unmatched_groups()
        upstream = {side: side.upstream(nodes[side], side.operation, side.group, side.source_kind) for side in nodes}
        self._pair(lambda s: s.downstream(nodes[s], upstream[s], s.group))
        self._propagate()
        self._pair(lambda s: upstream[s], same_count_only=True)
        self._propagate_by(lambda s: s.operation, exact=False)
        self._pair_by_inputs_and_consumers()

    def _nodes_of_unmatched_groups(self) -> dict[KeyedModel, list[int]]:
        """The nodes of the groups in which a node of either model is unmatched."""
        sides = (self._a, self._b)
        groups = {side.group[node] for side in sides for node in side.unmatched()}
        return {side: [node for node in side.index.order if side.group[node] in groups] for side in sides}

    def _has_unmatched(self) -> bool:
        return -1 in self.to_after and -1 in self.to_before

    def _may_have_same_owner(self, a: int, b: int) -> bool:
        """Whether two nodes may belong to the same module call."""
        first, second = self.before.owners[a], self.after.owners[b]
        return first is None or second is None or first == second

    def _match(self, a: int, b: int) -> None:
        self.to_after[a], self.to_before[b] = b, a

    def _pair(
        self,
        keys: Callable[[KeyedModel], list[int]],
        same_count_only: bool = False,
        accept: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Pair nodes with equal keys.

        Several nodes with the same key are paired by matched inputs and owner, then by name, then in order.

        Args:
            keys: Computes the keys of a model's nodes.
            same_count_only: Pair in order only if both models have the key equally often.
            accept: Whether a pair is allowed.
        """
        if not self._has_unmatched():
            return
        keys_a, keys_b = keys(self._a), keys(self._b)
        unmatched_a, classes = self._a.unmatched(), defaultdict(list)
        for b in self._b.unmatched():
            classes[keys_b[b]].append(b)
        counts = Counter(keys_a[a] for a in unmatched_a)
        sizes = {key: len(members) for key, members in classes.items()} if same_count_only else counts
        exact: dict[Key, list[int]] = defaultdict(list)
        several: list[int] = []
        for key, members in classes.items():
            if len(members) > 1 or counts[key] > 1:
                for b in reversed(members):
                    exact[key, self._own_inputs(b)].append(b)
                    exact[key, self._own_inputs(b), self.after.owners[b]].append(b)
                    exact[key, self.after.tensor_name(b)].append(b)
                members.reverse()
        for a in unmatched_a:
            key = keys_a[a]
            found = classes.get(key)
            if found is None:
                continue
            if counts[key] > 1 or len(found) > 1:
                several.append(a)
                self._match_first(a, self._candidates(a, key, exact), accept)
            elif accept is None or accept(a, found[0]):
                self._match(a, found[0])
        for a in several:
            if self.to_after[a] < 0:
                key = keys_a[a]
                named = exact.get((key, self.before.tensor_name(a)), [])
                in_order = classes[key] if counts[key] == sizes[key] else []
                self._match_first(a, [*self._candidates(a, key, exact), named, in_order], accept)

    def _candidates(self, a: int, key: int, exact: dict[Key, list[int]]) -> list[list[int]]:
        mapped = self._mapped_inputs(a)
        return [exact.get((key, mapped, self.before.owners[a]), []), exact.get((key, mapped), [])]

    def _match_first(
        self, a: int, candidates: Iterable[list[int]], accept: Callable[[int, int], bool] | None = None
    ) -> None:
        for stack in candidates:
            while stack and self.to_before[stack[-1]] >= 0:
                stack.pop()
            if stack and (accept is None or accept(a, stack[-1])):
                self._match(a, stack.pop())
                return

    def _own_inputs(self, b: int) -> tuple[int, ...]:
        side, producers = self._b, self.after.producers
        return tuple(
            OMITTED if v == ABSENT else v if producers[v] >= 0 else _source_key(side, v) for v in self.after.inputs[b]
        )

    def _mapped_inputs(self, a: int) -> tuple[int, ...]:
        return tuple(self._mapped(value) for value in self.before.inputs[a])

    def _mapped(self, value: int) -> int:
        """The value of the second model that matches one of the first."""
        if value == ABSENT:
            return OMITTED
        producer = self.before.producers[value]
        if producer < 0:
            return _source_key(self._a, value)
        match = self.to_after[producer]
        outputs = self.after.outputs[match] if match >= 0 else ()
        slot = self.before.output_indexes[value]
        return outputs[slot] if slot < len(outputs) else _UNMATCHED

    def _propagate(self) -> None:
        self._propagate_by(lambda s: s.kind, exact=True)

    def _propagate_by(self, kinds: Callable[[KeyedModel], list[int]], *, exact: bool) -> None:
        """Pair nodes of one kind whose inputs or consumers are matched, several times."""
        for _ in range(_MAX_PROPAGATIONS):
            before = self._pair_count()
            if exact:
                self._pair_by_inputs(kinds)
            self._pair_by_one_neighbor(kinds)
            if self._pair_count() == before or not self._has_unmatched():
                return

    def _pair_count(self) -> int:
        return len(self.to_after) - self.to_after.count(-1)

    def _pair_by_inputs(self, kinds: Callable[[KeyedModel], list[int]]) -> None:
        """Pair nodes of one kind with the same inputs. In topological order, each pair leads to the next."""
        kind_a, kind_b = kinds(self._a), kinds(self._b)
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in reversed(self._b.unmatched()):
            waiting[kind_b[b], self._own_inputs(b)].append(b)
        # Weights alone identify no node: many nodes can consume the same ones.
        distinctive = {_source_key(self._a, value) for value in self.inputs}
        for a in self._a.unmatched():
            mapped = self._mapped_inputs(a)
            if _UNMATCHED not in mapped and any(value >= 0 or value in distinctive for value in mapped):
                self._match_first(a, [waiting.get((kind_a[a], mapped), [])])

    def _mapped_consumers(self, a: int) -> tuple[Use, ...] | None:
        """The uses of a node's outputs in the second model; None unless all consumers are matched."""
        found = [(self.to_after[consumer], slot, output) for consumer, slot, output in self.before.consumers[a]]
        return tuple(sorted(found)) if all(consumer >= 0 for consumer, _, _ in found) else None

    def _pair_by_one_neighbor(self, kinds: Callable[[KeyedModel], list[int]]) -> None:
        """Pair nodes of one kind and module call if they alone share an input or a consumer."""
        kind_a, kind_b = kinds(self._a), kinds(self._b)
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in self._b.unmatched():
            for slot, value in enumerate(self.after.inputs[b]):
                if value != ABSENT and self.after.producers[value] >= 0:
                    waiting[kind_b[b], "input", slot, value].append(b)
            for consumer, slot, output in self.after.consumers[b]:
                waiting[kind_b[b], "consumer", consumer, slot, output].append(b)
        for a in self._a.unmatched():
            keys: list[Key] = [
                (kind_a[a], "input", slot, mapped)
                for slot, value in enumerate(self.before.inputs[a])
                if (mapped := self._mapped(value)) >= 0
            ]
            keys += [
                (kind_a[a], "consumer", self.to_after[consumer], slot, output)
                for consumer, slot, output in self.before.consumers[a]
                if self.to_after[consumer] >= 0
            ]
            for key in keys:
                members = waiting.get(key, ())
                if len(members) > _MAX_SHARED:
                    continue
                found = [b for b in members if self.to_before[b] < 0 and self._may_have_same_owner(a, b)]
                if len(found) == 1:
                    self._match(a, found[0])
                    break

    def _pair_by_inputs_and_consumers(self) -> None:
        """Pair nodes with the same inputs and the same consumers, also if their operators differ."""
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in reversed(self._b.unmatched()):
            produced = tuple(v for v in self.after.inputs[b] if v != ABSENT and self.after.producers[v] >= 0)
            uses, positions = tuple(sorted(self.after.consumers[b])), self._b.output_positions.get(b)
            waiting[produced, uses, positions, self.after.graph_paths[b]].append(b)
        for a in self._a.unmatched():
            consumers = self._mapped_consumers(a)
            produced = tuple(v for v in self._mapped_inputs(a) if v == _UNMATCHED or v >= 0)
            positions = self._a.output_positions.get(a)
            if consumers is not None and (consumers or positions) and produced and _UNMATCHED not in produced:
                found = waiting.get((produced, consumers, positions, self.before.graph_paths[a]), [])
                self._match_first(a, [found], self._may_have_same_owner)


def _source_key(side: KeyedModel, value: int) -> int:
    # Below zero, unlike the numbers of values, and below the constants above.
    return -10 - side.source.get(value, 0)


def _match_inputs(before: ModelIndex, after: ModelIndex) -> dict[int, int]:
    """Match the inputs of two models by name, and the others in order."""
    named = {after.names[value]: value for value in after.graph_inputs}
    found = {value: named.pop(before.names[value]) for value in before.graph_inputs if before.names[value] in named}
    rest = [value for value in before.graph_inputs if value not in found]
    unnamed = set(named.values())
    left = [value for value in after.graph_inputs if value in unnamed]
    found.update(zip(rest, left, strict=False))
    return found
