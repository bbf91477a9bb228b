"""Repeated structure: calls of one caller that do the same, and in words what differs in the others.

The structure of a call is its class, its own nodes with operators, attributes, types and shapes, the structures of the
calls inside of it, and how tensors connect them. Names and the content of weights are not part of it. Calls can repeat
each other if their module paths differ only in numbers: the layers of a list, or several calls of one module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from modelexport.display import counted
from modelexport.viewing.page_data import NONE, Calls, Graph, Modules, Nodes, Odd, Repeat, Tensors

_WEIGHT = 2
_MOST_DIFFERENCES = 6
# The calls inside of a call, by their path below it: class and own nodes.
Inside = dict[str, tuple[int, list[int]]]
# A node without its connections: operator, domain, subgraph, attributes, inputs and outputs.
NodeKey = tuple[int, int, str, tuple[int, ...], tuple[tuple[int, int, int], ...], tuple[tuple[int, int], ...]]


def find_repeats(
    modules: Modules, calls: Calls, graphs: Sequence[Graph], nodes: Nodes, tensors: Tensors, strings: Sequence[str]
) -> list[Repeat]:
    """The groups of calls with equal structure, at least two in each."""
    structure = _Structure(modules, calls, graphs, nodes, tensors)
    families: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}
    for call, (module, parent) in enumerate(zip(calls.module, calls.parent, strict=True)):
        path = strings[modules.path[module]].split(".")
        if call and (calls.nodes[call] or structure.callees[call]):
            shape = tuple("#" if part.isdigit() else part for part in path)
            families.setdefault((parent, modules.qualified_class[module], shape), []).append(call)
    words = _Words(structure, strings)
    found: list[Repeat] = []
    for members in families.values():
        groups: dict[int, list[int]] = {}
        for call in members:
            groups.setdefault(structure.signatures[call], []).append(call)
        label = strings[modules.class_name[calls.module[members[0]]]]
        largest = max(groups.values(), key=len)
        for group in groups.values():
            if len(group) > 1:
                others = [other for other in groups.values() if other is not group] if group is largest else []
                found.append(Repeat(tuple(group), label, tuple(words.odd(others, group[0]))))
    return sorted(found, key=lambda repeat: repeat.calls)


class _Structure:
    """The signature of each call: two calls have the same number if their structures are equal."""

    def __init__(self, modules: Modules, calls: Calls, graphs: Sequence[Graph], nodes: Nodes, tensors: Tensors) -> None:
        self.calls, self.modules, self.nodes, self.tensors = calls, modules, nodes, tensors
        self.callees: list[list[int]] = [[] for _ in calls.id]
        for call, parent in enumerate(calls.parent):
            if parent != NONE:
                self.callees[parent].append(call)
        self.own: list[list[int]] = [[] for _ in calls.id]
        for node, call in enumerate(nodes.call):
            self.own[call].append(node)
        self.keys = [self._node_key(node, graphs[graph].attribute) for node, graph in enumerate(nodes.graph)]
        self._depths = self._call_depths()
        # The position of each node in a walk over the calls, and where each call begins there.
        self._position = [0] * len(nodes.id)
        self._begin = [0] * len(calls.id)
        for position, node in enumerate(self._walk()):
            self._position[node] = position
        self._edges = self._connections()
        self.signatures = self._sign()

    def _node_key(self, node: int, subgraph: str) -> NodeKey:
        nodes, tensors = self.nodes, self.tensors
        inputs = tuple(
            (NONE, 0, 0)
            if tensor == NONE
            else (int(tensors.source[tensor] == _WEIGHT), tensors.dtype[tensor], tensors.shape[tensor])
            for tensor in nodes.inputs[node]
        )
        outputs = tuple((tensors.dtype[t], tensors.shape[t]) for t in nodes.outputs[node] if t != NONE)
        return (nodes.op[node], nodes.domain[node], subgraph, tuple(nodes.attributes[node]), inputs, outputs)

    def _call_depths(self) -> list[int]:
        depths = [NONE] * len(self.calls.id)
        waiting = [(call, 0) for call, parent in enumerate(self.calls.parent) if parent == NONE]
        while waiting:
            call, depth = waiting.pop()
            depths[call] = depth
            waiting += [(inner, depth + 1) for inner in self.callees[call]]
        return depths

    def _walk(self) -> Iterator[int]:
        """The nodes by call: those of a call, then those of the calls inside of it, in order."""
        waiting = [call for call, parent in enumerate(self.calls.parent) if parent == NONE]
        passed = 0
        while waiting:
            call = waiting.pop()
            self._begin[call] = passed
            passed += len(self.own[call])
            yield from self.own[call]
            waiting += reversed(self.callees[call])

    def _connections(self) -> list[list[tuple[int, int, int]]]:
        """Connections between nodes, each at the innermost call that encloses both, relative to its beginning."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in self.calls.id]
        owners, producers, position = self.nodes.call, self.tensors.producer, self._position
        for node, inputs in enumerate(self.nodes.inputs):
            for slot, tensor in enumerate(inputs):
                if tensor == NONE or producers[tensor] == NONE:
                    continue
                source = producers[tensor]
                around = self._common(owners[source], owners[node])
                begin = self._begin[around]
                found[around].append((position[source] - begin, position[node] - begin, slot))
        return found

    def _common(self, one: int, other: int) -> int:
        parents, depths = self.calls.parent, self._depths
        while one != other:
            if depths[one] >= depths[other]:
                one = parents[one]
            else:
                other = parents[other]
        return one

    def _sign(self) -> list[int]:
        signatures = [0] * len(self.calls.id)
        known: dict[object, int] = {}
        # From the innermost outwards.
        for call in sorted(range(len(signatures)), key=self._depths.__getitem__, reverse=True):
            key = (
                self.modules.qualified_class[self.calls.module[call]],
                tuple(self.keys[node] for node in self.own[call]),
                tuple(signatures[inner] for inner in self.callees[call]),
                tuple(sorted(self._edges[call])),
            )
            signatures[call] = known.setdefault(key, len(known))
        return signatures


class _Words:
    """What differs between two calls of one class, in words."""

    def __init__(self, structure: _Structure, strings: Sequence[str]) -> None:
        self._structure = structure
        self._strings = strings

    def odd(self, groups: Iterable[Sequence[int]], reference: int) -> Iterator[Odd]:
        """The calls of groups that differ from the one of the reference."""
        for group in groups:
            differences = tuple(self._differences(group[0], reference))
            yield from (Odd(call, differences) for call in group)

    def _differences(self, call: int, reference: int) -> list[str]:
        mine, theirs = self._inside(call), self._inside(reference)
        both = [place for place in mine if place in theirs]
        changes = (text for place in both for text in self._changes(mine[place][1], theirs[place][1]))
        found = [
            *self._call_differences(mine, theirs),
            *self._node_counts(mine, theirs),
            *dict.fromkeys(changes),
        ]
        if not found:
            return ["the same nodes are connected differently"]
        more = len(found) - _MOST_DIFFERENCES
        return found if more <= 0 else [*found[:_MOST_DIFFERENCES], f"and {counted(more, 'other difference')}"]

    def _inside(self, call: int) -> Inside:
        """The calls inside of a call, by their path below it: class and own nodes."""
        structure, strings = self._structure, self._strings
        base = strings[structure.modules.path[structure.calls.module[call]]]
        found: Inside = {}
        waiting = [call]
        while waiting:
            current = waiting.pop()
            module = structure.calls.module[current]
            path = strings[structure.modules.path[module]]
            place = "" if current == call else path.removeprefix(f"{base}." if base else "")
            while place in found:
                place += "'"
            found[place] = (structure.modules.class_name[module], structure.own[current])
            waiting += reversed(structure.callees[current])
        return found

    def _call_differences(self, mine: Inside, theirs: Inside) -> Iterator[str]:
        for place, (name, _) in mine.items():
            if place not in theirs:
                yield f"calls {place} ({self._strings[name]})"
            elif theirs[place][0] != name:
                yield f"{place} is a {self._strings[name]} instead of a {self._strings[theirs[place][0]]}"
        for place, (name, _) in theirs.items():
            if place not in mine:
                yield f"does not call {place} ({self._strings[name]})"

    def _node_counts(self, mine: Inside, theirs: Inside) -> Iterator[str]:
        ops = self._structure.nodes.op
        first, second = (
            Counter(self._strings[ops[node]] for _, own in side.values() for node in own) for side in (mine, theirs)
        )
        for surplus, word in ((first - second, "more"), (second - first, "fewer")):
            if surplus:
                names = ", ".join(op if number == 1 else f"{number} {op}" for op, number in surplus.items())
                yield f"{counted(surplus.total(), 'node')} {word}: {names}"

    def _changes(self, mine: list[int], theirs: list[int]) -> Iterator[str]:
        """Attributes, types and shapes of nodes of the same operator that differ, in order."""
        by_op: dict[int, tuple[list[int], list[int]]] = {}
        for side, own in enumerate((mine, theirs)):
            for node in own:
                by_op.setdefault(self._structure.nodes.op[node], ([], []))[side].append(node)
        for op, (first, second) in by_op.items():
            if len(first) == len(second):
                for one, other in zip(first, second, strict=True):
                    yield from self._node_changes(self._strings[op], one, other)

    def _node_changes(self, op: str, one: int, other: int) -> Iterator[str]:
        keys, text = self._structure.keys, self._strings
        first, second = keys[one], keys[other]
        values, others = _pairs(first[3]), _pairs(second[3])
        for name in dict.fromkeys((*values, *others)):
            if values.get(name) != others.get(name):
                mine, theirs = (text[side[name]] if name in side else "unset" for side in (values, others))
                yield f"{op}: attribute {text[name]} {mine} instead of {theirs}"
        for (weight, dtype, shape), (_, their_dtype, their_shape) in zip(first[4], second[4], strict=False):
            if weight == 1:
                yield from self._type_change(f"{op}: weight", (dtype, shape), (their_dtype, their_shape))
        if len(first[4]) != len(second[4]):
            yield f"{op}: {counted(len(first[4]), 'input')} instead of {len(second[4])}"
        for mine_type, their_type in zip(first[5], second[5], strict=False):
            yield from self._type_change(f"{op}: output", mine_type, their_type)

    def _type_change(self, what: str, mine: tuple[int, int], theirs: tuple[int, int]) -> Iterator[str]:
        for word, one, other in zip(("type", "shape"), mine, theirs, strict=True):
            if one != other:
                texts = (self._strings[text] or "unknown" for text in (one, other))
                yield f"{what} {word} {' instead of '.join(texts)}"


def _pairs(flat: Sequence[int]) -> dict[int, int]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
