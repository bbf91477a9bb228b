"""Overlays that come from the file itself: kinds of attribution, confidence, precision, FLOPs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from modelexport.display import counted
from modelexport.errors import FileFormatError, InputError
from modelexport.graph import ELEMENT_TYPES
from modelexport.profiling.static_cost import MOST_EXPANDED_NODES, count_nodes
from modelexport.storage import ModelFile, check_functions
from modelexport.viewing.hierarchy_tables import with_callees
from modelexport.viewing.page_data import KINDS, NONE, Calls, Nodes, Overlay, Tensors, Values

_INTEGERS = "integers and booleans"
_OTHER = "other combinations"
_MOST_CATEGORIES = 8
# Types of 8 bits or fewer, and all floats, say how precise a value is; wider integers are indices, sizes and masks.
_WIDE_BITS = 8
_WIDE = {name for name, kind in ELEMENT_TYPES.items() if kind.is_integer() and kind.bitwidth > _WIDE_BITS} | {"bool"}
_MOST_UNCOUNTED = 5


def kind_overlay(calls: Calls, nodes: Nodes) -> Overlay:
    """The kind of attribution that is furthest from exact."""
    values: Values = [*nodes.kind]
    own = _by_call(calls, nodes, values, max)
    counts: list[Counter[int]] = [Counter() for _ in calls.id]
    for kind, call in zip(nodes.kind, nodes.call, strict=True):
        counts[call][kind] += 1
    return Overlay(
        id="kind",
        title="Kind of attribution",
        description="How the owner of a node is known; of a call, the kind of its nodes that is furthest from exact.",
        scale="category",
        unit="",
        categories=KINDS,
        calls=own,
        totals=_inside(calls, own, max),
        nodes=values,
        details={
            call: [", ".join(f"{number:,} {KINDS[kind]}" for kind, number in sorted(found.items()))]
            for call, found in enumerate(counts)
            if len(found) > 1
        },
    )


def confidence_overlay(calls: Calls, nodes: Nodes) -> Overlay:
    """The lowest confidence."""
    values: Values = [*nodes.confidence]
    own = _by_call(calls, nodes, values, min)
    return Overlay(
        id="confidence",
        title="Confidence",
        description="How sure the owner of a node is, from 0 to 1; of a call, the lowest of its nodes.",
        scale="sequential",
        unit="share",
        calls=own,
        totals=_inside(calls, own, min),
        nodes=values,
    )


def precision_overlay(calls: Calls, nodes: Nodes, tensors: Tensors, strings: Sequence[str]) -> Overlay:
    """The element types that nodes and calls compute with."""
    types = [_data_types(node, nodes, tensors, strings) for node in range(len(nodes.id))]
    own: list[set[str]] = [set() for _ in calls.id]
    for found, call in zip(types, nodes.call, strict=True):
        own[call] |= found
    totals = unions(calls, own)
    names = _Categories([*map(_combined, types), *map(_combined, own), *map(_combined, totals)])
    return Overlay(
        id="precision",
        title="Precision",
        description="The types of the inputs and outputs of nodes: floats, and integers of 8 bits or fewer.",
        scale="category",
        unit="",
        categories=names.categories,
        calls=[names.number(_combined(found)) for found in own],
        totals=[names.number(_combined(found)) for found in totals],
        nodes=[names.number(_combined(found)) for found in types],
    )


def flops_overlay(
    file: ModelFile, calls: Calls, nodes: Nodes, strings: Sequence[str], axes: Mapping[str, int] | None = None
) -> tuple[Overlay | None, list[str]]:
    """The FLOPs of one run, from shapes; None with a note where sizes are not known.

    Raises:
        InputError: A given axis is not one of the model, or others are missing.
    """
    try:
        check_functions(file.proto, file.path, MOST_EXPANDED_NODES)
        _, found = count_nodes(file, axes)
    except (InputError, FileFormatError) as error:
        if axes and isinstance(error, InputError):
            raise
        return None, [f"FLOPs are left out: {error}"]
    numbers = {strings[name]: number for number, name in enumerate(nodes.id)}
    by_node = [0] * len(nodes.id)
    uncounted: Counter[str] = Counter()
    for cost in found.nodes:
        by_node[numbers[cost.id]] = cost.work.flops
        for (op, reason), number in cost.uncounted.items():
            uncounted[f"{op} ({reason})"] += number
    own = [0] * len(calls.id)
    for flops, call in zip(by_node, nodes.call, strict=True):
        own[call] += flops
    notes = list(found.notes)
    if uncounted:
        some = ", ".join(f"{number:,} {name}" for name, number in uncounted.most_common(_MOST_UNCOUNTED))
        notes.append(f"not counted: {counted(uncounted.total(), 'node')}: {some}")
    return (
        Overlay(
            id="flops",
            title="FLOPs",
            description="Floating-point operations of one run, counted from shapes without running the file.",
            scale="sequential",
            unit="count",
            calls=[*own],
            totals=[*with_callees(own, calls.parent)],
            nodes=[*by_node],
            notes=tuple(notes),
            sizes=True,
        ),
        [],
    )


def _by_call(calls: Calls, nodes: Nodes, values: Values, best: Callable[[float, float], float]) -> Values:
    """The largest or smallest value of the nodes that a call owns."""
    found: Values = [None] * len(calls.id)
    for value, call in zip(values, nodes.call, strict=True):
        if value is not None:
            found[call] = value if (known := found[call]) is None else best(known, value)
    return found


def _inside(calls: Calls, own: Values, best: Callable[[float, float], float]) -> Values:
    """The largest or smallest value of a call and those inside of it."""
    found: Values = [None] * len(own)
    for number, value in enumerate(own):
        current = number if value is not None else NONE
        while current != NONE and value is not None:
            known = found[current]
            if known is not None and best(known, value) == known:
                break  # and so it is for all callers
            found[current] = value
            current = calls.parent[current]
    return found


def unions(calls: Calls, own: Sequence[set[str]]) -> list[set[str]]:
    """The set of each call with those of all calls inside of it."""
    found = [set(types) for types in own]
    for number, types in enumerate(own):
        current = calls.parent[number] if types else NONE
        while current != NONE and not types <= found[current]:
            found[current] |= types
            current = calls.parent[current]
    return found


def _data_types(node: int, nodes: Nodes, tensors: Tensors, strings: Sequence[str]) -> set[str]:
    """The types of a node's tensors that say how precise they are, or that it has only others."""
    used = {
        strings[tensors.dtype[tensor]]
        for tensor in (*nodes.inputs[node], *nodes.outputs[node])
        if tensor != NONE and tensors.dtype[tensor]
    }
    return used - _WIDE or ({_INTEGERS} if used else set())


def _combined(types: Iterable[str]) -> str:
    found = set(types)
    precise = found - {_INTEGERS}
    return " and ".join(sorted(precise or found))


class _Categories:
    """The most frequent combinations of types."""

    def __init__(self, names: Iterable[str]) -> None:
        counts = Counter(name for name in names if name)
        shown = [name for name, _ in counts.most_common(_MOST_CATEGORIES)]
        self.categories = (*shown, _OTHER) if len(shown) < len(counts) else tuple(shown)
        self._numbers = {name: number for number, name in enumerate(shown)}

    def number(self, name: str) -> float | None:
        return self._numbers.get(name, len(self.categories) - 1) if name else None
