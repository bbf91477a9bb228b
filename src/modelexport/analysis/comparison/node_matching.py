"""Which node of one model is which of another: by module and structure, with names as the last thing asked.

Each round gives the nodes of both models keys, and pairs nodes of one key. The keys of the first round say everything
about a node: all it is computed from and all that is computed from it; if the models have the same structure, it pairs
them all. The rounds after it say less: what is around the node in its own module call, then what is before it there, or
behind it, then which pairs it lies between. The last ones pair nodes that stand in one place and differ.

Every round is linear in the number of nodes, and there is a fixed number of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from modelexport.analysis.comparison.model_index import ABSENT, Key, Outline

# What stands for a value in a key: one from another module call, one left out, one whose maker has no partner.
_OUTSIDE, _LEFT_OUT, _UNPAIRED = -1, -2, -3
# How often pairs are spread to their neighbours after each round; what lies further apart than that stays unpaired.
_SPREADS = 4
# How far the surroundings reach that nodes are recognised by where nothing near them is paired.
_SURROUNDINGS = 3
# Among more nodes than this that share a neighbour, none is told from the others by it.
_FEW = 8

_Reader = tuple[int, int, int]


class Side:
    """One of the two models, with the keys of its nodes. Keys of both sides come from one table of numbers."""

    def __init__(self, outline: Outline, table: dict[object, int], inputs: dict[int, int], by_call: bool) -> None:
        self.outline = outline
        self.partner = [-1] * len(outline)
        self.table = table
        leaves = {**outline.leaves, **{value: ("input", number) for value, number in inputs.items()}}
        number = self.number
        self.leaf = {value: number(leaf) for value, leaf in leaves.items()}
        self.loose_leaf = {value: number(leaf[:1]) for value, leaf in leaves.items()}
        calls = outline.owners if by_call else [None] * len(outline)
        self.group = [number(("group", call, place)) for call, place in zip(calls, outline.places, strict=True)]
        self.operation = [number(operation) for operation in outline.operations]
        self.ends: dict[int, Key] = {}
        for value, ends in outline.ends.items():
            node = outline.producers[value]
            self.ends[node] = (*self.ends.get(node, ()), (outline.slots[value], ends))
        # An attribute-less node needs no key of its own.
        self.kind = [
            number((operation, attributes)) if attributes else operation
            for operation, attributes in zip(self.operation, outline.attributes, strict=True)
        ]

    def number(self, key: object) -> int:
        """The number of a key, the same on both sides."""
        return self.table.setdefault(key, len(self.table))

    def unpaired(self) -> list[int]:
        """The nodes without a partner, in the order of the data flow."""
        return [node for node in self.outline.order if self.partner[node] < 0]

    # --- keys by structure ---------------------------------------------------------------------------------------

    def forward(
        self, nodes: Sequence[int], kinds: Sequence[int], groups: Sequence[int], leaf: dict[int, int]
    ) -> list[int]:
        """For each of the nodes, which are whole groups, a key of what it is computed from within its group."""
        found = [0] * len(kinds)
        outline, table = self.outline, self.table
        producers, slots = outline.producers, outline.slots
        for node in nodes:
            parts: list[object] = [kinds[node], groups[node]]
            for value in outline.inputs[node]:
                producer = producers[value] if value != ABSENT else ABSENT
                if producer < 0:
                    parts.append(_LEFT_OUT if value == ABSENT else leaf.get(value, _LEFT_OUT))
                elif groups[producer] != groups[node]:
                    parts.append(_OUTSIDE)
                elif slots[value]:
                    parts.append((found[producer], slots[value]))
                else:
                    parts.append(found[producer])
            found[node] = table.setdefault(tuple(parts), len(table))
        return found

    def backward(self, nodes: Sequence[int], own: Sequence[int], groups: Sequence[int]) -> list[int]:
        """For each of the nodes, which are whole groups, a key of it and of what is computed from it in its group."""
        found = [0] * len(own)
        outline, table = self.outline, self.table
        for node in reversed(nodes):
            inside: list[_Reader] = []
            outside = False
            for reader, slot, output in outline.readers[node]:
                if groups[reader] == groups[node]:
                    inside.append((found[reader], slot, output))
                else:
                    outside = True
            if len(inside) > 1:
                inside.sort()
            key = (own[node], groups[node], outside, tuple(inside), self.ends.get(node))
            found[node] = table.setdefault(key, len(table))
        return found

    def surface(self, nodes: Sequence[int], kinds: Sequence[int], leaf: dict[int, int]) -> list[int]:
        """For each of the nodes a key of what it is and of the weights and arguments that it takes."""
        found = [0] * len(kinds)
        inputs, leaves = self.outline.inputs, self.outline.leaves
        for node in nodes:
            values = [_LEFT_OUT if v == ABSENT else leaf[v] if v in leaves else _OUTSIDE for v in inputs[node]]
            found[node] = self.number((kinds[node], *values))
        return found

    def surroundings(self, nodes: Sequence[int], own: list[int]) -> list[int]:
        """For each of the nodes a key of what lies around it, wherever that is."""
        outline = self.outline
        # Which nodes are needed for the keys of which step: those around the ones of the step after it.
        needed = [set(nodes)]
        for _ in range(_SURROUNDINGS - 1):
            wider = set(needed[-1])
            for node in needed[-1]:
                wider.update(reader for reader, _, _ in outline.readers[node])
                wider.update(outline.producers[value] for value in outline.inputs[node] if value != ABSENT)
            wider.discard(-1)
            needed.append(wider)
        for step in reversed(needed):
            found = own.copy()
            for node in step:
                values = outline.inputs[node]
                before = tuple(own[p] if v != ABSENT and (p := outline.producers[v]) >= 0 else -1 for v in values)
                after = sorted((own[reader], slot) for reader, slot, _ in outline.readers[node])
                found[node] = self.number((own[node], before, tuple(after)))
            own = found
        return own


class Matching:
    """The pairs between the nodes of two models.

    Attributes:
        before: The outline of the first.
        after: The outline of the second.
        to_after: For each node of the first its partner, or -1.
        to_before: For each node of the second its partner, or -1.
        inputs: For each input of the first model the one of the second.
    """

    def __init__(self, before: Outline, after: Outline) -> None:
        self.before, self.after = before, after
        self.inputs = _paired_by_name(before, after)
        table: dict[object, int] = {}
        # With the hierarchy of one model only, structure is all there is to go by.
        by_call = all(any(owner is not None for owner in side.owners) for side in (before, after))
        self._a = Side(before, table, {value: number for number, value in enumerate(self.inputs)}, by_call)
        self._b = Side(after, table, {value: number for number, value in enumerate(self.inputs.values())}, by_call)
        self.to_after, self.to_before = self._a.partner, self._b.partner
        self._pair_same_structure()
        if self._open():
            self._pair_by_module()
            self._pair_changed()

    # --- rounds --------------------------------------------------------------------------------------------------

    def _pair_same_structure(self) -> None:
        """Nodes that are computed from the same, and from which the same is computed, in the whole model."""

        def keys(side: Side) -> list[int]:
            everywhere = [side.number(place) for place in side.outline.places]
            nodes = side.outline.order
            return side.backward(nodes, side.forward(nodes, side.kind, everywhere, side.leaf), everywhere)

        self._pair(keys)

    def _pair_by_module(self) -> None:
        """Nodes at the same place in the structure of their own module call: all of it, from above, from below.

        Where one model has more of them than the other, what is around them is asked first.
        """
        nodes = self._in_open_groups()
        forward = {side: side.forward(nodes[side], side.kind, side.group, side.leaf) for side in nodes}
        around = {side: side.backward(nodes[side], forward[side], side.group) for side in nodes}
        self._pair(around.__getitem__, equally_many=True)
        self._pair(forward.__getitem__, equally_many=True)
        surface = {side: side.surface(nodes[side], side.kind, side.leaf) for side in nodes}
        backward = {side: side.backward(nodes[side], surface[side], side.group) for side in nodes}
        self._pair(backward.__getitem__, equally_many=True)
        self._spread()
        self._pair_by_names()
        self._pair_by_surroundings()
        for keys in (around, forward, backward):
            self._pair(keys.__getitem__)
        self._spread()

    def _pair_by_names(self) -> None:
        """Nodes that are alike and make a tensor of the same name: what other tools keep best."""

        def keys(side: Side) -> list[int]:
            found = [0] * len(side.kind)
            for node in side.unpaired():
                found[node] = side.number((side.kind[node], side.outline.tensor_name(node)))
            return found

        if self._open():
            self._pair(keys, accept=self._compatible)
            self._spread()

    def _pair_by_surroundings(self) -> None:
        """Nodes that look the same some steps around, where both models have equally many of them."""

        def keys(side: Side) -> list[int]:
            surface = side.surface(side.outline.order, side.kind, side.leaf)
            own = [side.number(both) for both in zip(surface, side.group, strict=True)]
            return side.surroundings(side.unpaired(), own)

        if self._open():
            self._pair(keys, equally_many=True)
            self._spread()

    def _pair_changed(self) -> None:
        """Nodes in one place that differ: first in attributes and weights, then in the operation itself."""
        if not self._open():
            return
        self._spread_by(lambda s: s.operation, exact=False)
        nodes = self._in_open_groups()
        forward = {side: side.forward(nodes[side], side.operation, side.group, side.loose_leaf) for side in nodes}
        self._pair(lambda s: s.backward(nodes[s], forward[s], s.group))
        self._spread()
        self._pair(lambda s: forward[s], equally_many=True)
        self._spread_by(lambda s: s.operation, exact=False)
        self._pair_between()

    def _in_open_groups(self) -> dict[Side, list[int]]:
        """The nodes of the groups in which a node has no partner, on either side."""
        sides = (self._a, self._b)
        groups = {side.group[node] for side in sides for node in side.unpaired()}
        return {side: [node for node in side.outline.order if side.group[node] in groups] for side in sides}

    # --- pairing -------------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        return -1 in self.to_after and -1 in self.to_before

    def _compatible(self, a: int, b: int) -> bool:
        """Whether two nodes may be of one module call."""
        first, second = self.before.owners[a], self.after.owners[b]
        return first is None or second is None or first == second

    def _join(self, a: int, b: int) -> None:
        self.to_after[a], self.to_before[b] = b, a

    def _pair(
        self,
        keys: Callable[[Side], list[int]],
        equally_many: bool = False,
        accept: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Pair nodes of one key.

        Of several those with paired inputs and one owner first, then those of one name, then in order.

        Args:
            keys: The key of each node of a side.
            equally_many: Leave several in order alone where one model has more of them than the other.
            accept: Which pairs may be.
        """
        if not self._open():
            return
        keys_a, keys_b = keys(self._a), keys(self._b)
        open_a, classes = self._a.unpaired(), defaultdict(list)
        for b in self._b.unpaired():
            classes[keys_b[b]].append(b)
        counts = Counter(keys_a[a] for a in open_a)
        sizes = {key: len(members) for key, members in classes.items()} if equally_many else counts
        exact: dict[Key, list[int]] = defaultdict(list)
        several: list[int] = []
        for key, members in classes.items():
            if len(members) > 1 or counts[key] > 1:
                for b in reversed(members):
                    exact[key, self._own_inputs(b)].append(b)
                    exact[key, self._own_inputs(b), self.after.owners[b]].append(b)
                    exact[key, self.after.tensor_name(b)].append(b)
                members.reverse()
        for a in open_a:
            key = keys_a[a]
            found = classes.get(key)
            if found is None:
                continue
            if counts[key] > 1 or len(found) > 1:
                several.append(a)
                self._join_first(a, self._candidates(a, key, exact), accept)
            elif accept is None or accept(a, found[0]):
                self._join(a, found[0])
        for a in several:
            if self.to_after[a] < 0:
                key = keys_a[a]
                named = exact.get((key, self.before.tensor_name(a)), [])
                in_order = classes[key] if counts[key] == sizes[key] else []
                self._join_first(a, [*self._candidates(a, key, exact), named, in_order], accept)

    def _candidates(self, a: int, key: int, exact: dict[Key, list[int]]) -> list[list[int]]:
        mapped = self._mapped_inputs(a)
        return [exact.get((key, mapped, self.before.owners[a]), []), exact.get((key, mapped), [])]

    def _join_first(
        self, a: int, candidates: Iterable[list[int]], accept: Callable[[int, int], bool] | None = None
    ) -> None:
        for stack in candidates:
            while stack and self.to_before[stack[-1]] >= 0:
                stack.pop()
            if stack and (accept is None or accept(a, stack[-1])):
                self._join(a, stack.pop())
                return

    def _own_inputs(self, b: int) -> tuple[int, ...]:
        side, producers = self._b, self.after.producers
        return tuple(
            _LEFT_OUT if v == ABSENT else v if producers[v] >= 0 else _leaf(side, v) for v in self.after.inputs[b]
        )

    def _mapped_inputs(self, a: int) -> tuple[int, ...]:
        return tuple(self._mapped(value) for value in self.before.inputs[a])

    def _mapped(self, value: int) -> int:
        """The value of the second model for one of the first."""
        if value == ABSENT:
            return _LEFT_OUT
        producer = self.before.producers[value]
        if producer < 0:
            return _leaf(self._a, value)
        partner = self.to_after[producer]
        outputs = self.after.outputs[partner] if partner >= 0 else ()
        slot = self.before.slots[value]
        return outputs[slot] if slot < len(outputs) else _UNPAIRED

    # --- spreading -----------------------------------------------------------------------------------------------

    def _spread(self) -> None:
        self._spread_by(lambda s: s.kind, exact=True)

    def _spread_by(self, kinds: Callable[[Side], list[int]], *, exact: bool) -> None:
        """Pair nodes of one kind whose inputs or readers are pairs, and go on from there."""
        for _ in range(_SPREADS):
            before = self._paired()
            if exact:
                self._pair_after(kinds)
                self._pair_before(kinds)
            self._pair_beside(kinds)
            if self._paired() == before or not self._open():
                return

    def _paired(self) -> int:
        return len(self.to_after) - self.to_after.count(-1)

    def _pair_after(self, kinds: Callable[[Side], list[int]]) -> None:
        """Nodes of one kind with the same inputs. One pass: pairs lead to the pairs that follow from them."""
        kind_a, kind_b = kinds(self._a), kinds(self._b)
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in reversed(self._b.unpaired()):
            waiting[kind_b[b], self._own_inputs(b)].append(b)
        # Weights alone say nothing: many nodes may take such.
        telling = {_leaf(self._a, value) for value in self.inputs}
        for a in self._a.unpaired():
            mapped = self._mapped_inputs(a)
            if _UNPAIRED not in mapped and any(value >= 0 or value in telling for value in mapped):
                self._join_first(a, [waiting.get((kind_a[a], mapped), [])])

    def _pair_before(self, kinds: Callable[[Side], list[int]]) -> None:
        """Nodes of one kind that are read by the same, from the last to the first."""
        kind_a, kind_b = kinds(self._a), kinds(self._b)
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in self._b.unpaired():
            if self.after.readers[b]:
                waiting[kind_b[b], tuple(sorted(self.after.readers[b]))].append(b)
        for a in reversed(self._a.unpaired()):
            readers = self._mapped_readers(a)
            if readers:
                self._join_first(a, [waiting.get((kind_a[a], readers), [])])

    def _mapped_readers(self, a: int) -> tuple[_Reader, ...] | None:
        """The partners of those that read what a node makes, None unless all have one."""
        found = [(self.to_after[reader], slot, output) for reader, slot, output in self.before.readers[a]]
        return tuple(sorted(found)) if all(reader >= 0 for reader, _, _ in found) else None

    def _pair_beside(self, kinds: Callable[[Side], list[int]]) -> None:
        """Nodes of one kind and module call that share one input or one reader with each other, and with no third."""
        kind_a, kind_b = kinds(self._a), kinds(self._b)
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in self._b.unpaired():
            for slot, value in enumerate(self.after.inputs[b]):
                if value != ABSENT and self.after.producers[value] >= 0:
                    waiting[kind_b[b], "input", slot, value].append(b)
            for reader, slot, output in self.after.readers[b]:
                waiting[kind_b[b], "reader", reader, slot, output].append(b)
        for a in self._a.unpaired():
            keys: list[Key] = [
                (kind_a[a], "input", slot, mapped)
                for slot, value in enumerate(self.before.inputs[a])
                if (mapped := self._mapped(value)) >= 0
            ]
            keys += [
                (kind_a[a], "reader", self.to_after[reader], slot, output)
                for reader, slot, output in self.before.readers[a]
                if self.to_after[reader] >= 0
            ]
            for key in keys:
                members = waiting.get(key, ())
                if len(members) > _FEW:
                    continue
                found = [b for b in members if self.to_before[b] < 0 and self._compatible(a, b)]
                if len(found) == 1:
                    self._join(a, found[0])
                    break

    def _pair_between(self) -> None:
        """Nodes with the same inputs and the same readers, whatever they do."""
        waiting: dict[Key, list[int]] = defaultdict(list)
        for b in reversed(self._b.unpaired()):
            made = tuple(v for v in self.after.inputs[b] if v != ABSENT and self.after.producers[v] >= 0)
            waiting[made, tuple(sorted(self.after.readers[b])), self._b.ends.get(b), self.after.places[b]].append(b)
        for a in self._a.unpaired():
            readers = self._mapped_readers(a)
            made = tuple(v for v in self._mapped_inputs(a) if v == _UNPAIRED or v >= 0)
            ends = self._a.ends.get(a)
            if readers is not None and (readers or ends) and made and _UNPAIRED not in made:
                found = waiting.get((made, readers, ends, self.before.places[a]), [])
                self._join_first(a, [found], self._compatible)


def _leaf(side: Side, value: int) -> int:
    # Below the numbers that stand for something else.
    return -10 - side.leaf.get(value, 0)


def _paired_by_name(before: Outline, after: Outline) -> dict[int, int]:
    """The inputs of two models: those of one name, and the others in order."""
    named = {after.names[value]: value for value in after.graph_inputs}
    found = {value: named.pop(before.names[value]) for value in before.graph_inputs if before.names[value] in named}
    rest = [value for value in before.graph_inputs if value not in found]
    unnamed = set(named.values())
    left = [value for value in after.graph_inputs if value in unnamed]
    found.update(zip(rest, left, strict=False))
    return found
