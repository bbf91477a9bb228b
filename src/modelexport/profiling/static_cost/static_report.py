"""The static cost of a file by module call: arithmetic, weights, activations and memory traffic, own and total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from modelexport.deadline import reads_files
from modelexport.display import Summary, counted, summarized
from modelexport.errors import InputError
from modelexport.hierarchy import ROOT_CALL, CallRecord, HierarchyDocument, json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.profiling.profiler import selected_calls
from modelexport.profiling.report import ROOT_NAME, Grouping, Sorting
from modelexport.profiling.static_cost.graph_cost import NO_SHAPE, GraphCost, count_uncounted, graph_cost
from modelexport.profiling.static_cost.tensor_shapes import Axes
from modelexport.storage import ModelFile, check_functions, find_hierarchy, read_model

_MOST_AXES = 10
# Shape inference visits the body of a function for each call of it: what `check_functions` accepts.
MOST_EXPANDED_NODES = 1_000_000


class StaticCost(msgspec.Struct, frozen=True):
    """The cost of some nodes in one run of the model.

    Attributes:
        nodes: The number of nodes.
        macs: Multiply-accumulates of matrix products, convolutions, attention and recurrent layers.
        flops: Floating-point operations: two for each multiply-accumulate, as torch's FlopCounterMode counts.
        other_operations: Other arithmetic, which FLOPs do not contain: one for each step on an element, as of
            activations, normalizations, sums and reductions.
        parameters: Elements of the initializers that the nodes read, each initializer once, without those of types
            that shapes, indices and masks have (32-bit and 64-bit integers, booleans).
        parameter_bytes: Their size.
        activation_bytes: The size of the outputs of the nodes.
        traffic_bytes: The size of all inputs and outputs, each time a node reads or writes them: the memory traffic of
            a run without fusion.
        operations_per_byte: FLOPs and other operations for each byte of traffic; None without traffic. On a roofline, a
            value below the machine's FLOPs per second by its bytes per second says that memory limits the module.
    """

    nodes: int
    macs: int
    flops: int
    other_operations: int
    parameters: int
    parameter_bytes: int
    activation_bytes: int
    traffic_bytes: int
    operations_per_byte: float | None


class CallCost(msgspec.Struct, frozen=True):
    """A module call: its id, module and caller, the cost of its own nodes, and that with all calls inside of it."""

    id: str
    path: str
    class_name: str
    parent: str | None
    own: StaticCost
    total: StaticCost


class StaticRow(msgspec.Struct, frozen=True):
    """A row of the report: a call, module, class or operator, with the number of its calls."""

    name: str
    class_name: str
    calls: int
    own: StaticCost
    total: StaticCost


class NodeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of the graph: its id, operator and call, its cost in one run, and the weights that it reads."""

    id: str
    op: str
    call: str
    macs: int = 0
    flops: int = 0
    other_operations: int = 0
    activation_bytes: int = 0
    traffic_bytes: int = 0
    weights: tuple[str, ...] = ()


class WeightSize(msgspec.Struct, frozen=True):
    """The elements and bytes of an initializer."""

    elements: int
    bytes: int


class Uncounted(msgspec.Struct, frozen=True):
    """Nodes of one operator whose arithmetic is not in the report, and why."""

    op: str
    nodes: int
    reason: str


def _summary(report: StaticReport) -> Summary:
    facts = {
        "file": report.file,
        "flops": report.total.flops,
        "macs": report.total.macs,
        "other_operations": report.total.other_operations,
        "parameters": report.total.parameters,
        "uncounted_nodes": sum(entry.nodes for entry in report.uncounted),
    }
    rows = [(call.id or "(root)", call.class_name, call.own.flops, call.total.flops) for call in report.calls]
    return Summary(facts, ("call", "class", "own FLOPs", "total FLOPs"), rows)


@summarized(_summary)
class StaticReport(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a file without running it.

    Attributes:
        file: The file.
        graph_hash: The hash of its graph without metadata.
        origin: The source of the hierarchy.
        axes: The sizes of dynamic axes.
        total: The cost of the whole graph.
        calls: The cost of each module call, callers before the calls inside of them.
        nodes: The cost of each node that runs.
        weights: The initializers that nodes read, by id.
        selected: The ids of the selected calls, with those inside of them; None for all.
        uncounted: Nodes whose arithmetic is not counted.
        notes: What the user should know of the counts.
        schema_version: The version of this format.
    """

    file: str
    graph_hash: str
    origin: str
    axes: dict[str, int]
    total: StaticCost
    calls: tuple[CallCost, ...]
    nodes: tuple[NodeRow, ...]
    weights: dict[str, WeightSize]
    selected: tuple[str, ...] | None
    uncounted: tuple[Uncounted, ...]
    notes: tuple[str, ...]
    schema_version: int = 1

    def rows(self, by: str = "call", *, depth: int | None = None, sort: str = "own") -> list[StaticRow]:
        """The rows of the report, the largest first, without those that have no node.

        Args:
            by: ``"call"``, ``"module"``, ``"class"`` or ``"op"``.
            depth: Count deeper modules for the module that encloses them.
            sort: By FLOPs, ``"own"`` or ``"total"``; or by ``"memory"``, the bytes of parameters and activations.

        Raises:
            InputError: An argument is unknown.
        """
        for value, known in ((by, Grouping), (sort, Sorting)):
            if value not in list(known):
                raise InputError(f"{value!r} is not one of {', '.join(known)}")
        calls = {call.id: call for call in self.calls}

        def name(call: CallCost) -> str:
            while depth is not None and _depth(call.path) > depth and call.parent in calls:
                call = calls[call.parent or ""]
            return {"call": call.id, "module": call.path}.get(by, call.class_name)

        names = {call.id: name(call) for call in self.calls}
        selected = names.keys() if self.selected is None else set(self.selected)
        grouped = _Groups(self.weights)
        for node in self.nodes:
            if node.call in selected:
                around = {names[call]: None for call in _chain(node.call, calls) if call in selected}
                grouped.add(node, *((node.op, (node.op,)) if by == "op" else (names[node.call], around)))
        first = {names[call.id]: call for call in reversed(self.calls)}
        called = Counter(name for call, name in names.items() if call in selected)
        found = [
            StaticRow(
                name=key or ROOT_NAME,
                class_name="" if by == "op" else first[key].class_name,
                calls=0 if by == "op" else called[key],
                own=grouped.own(key),
                total=grouped.total(key),
            )
            for key in grouped.keys
        ]

        def size(row: StaticRow) -> tuple[int, int, int, int]:
            memory = row.own.parameter_bytes + row.own.activation_bytes
            amount = {"own": row.own.flops, "total": row.total.flops, "memory": memory}[sort]
            return amount, row.own.other_operations, row.own.traffic_bytes, row.total.flops

        return sorted(found, key=size, reverse=True)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content


@reads_files()
def profile_statically(
    path: str | Path,
    *,
    axes: Mapping[str, int] | None = None,
    select: str | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> StaticReport:
    """Count the arithmetic, weights, activations and memory traffic of a file by module call, without running it.

    Args:
        path: The file.
        axes: The sizes of dynamic axes by name; an axis without a name is ``INPUT.POSITION``.
        select: Rows of only the calls that this selector names (docs/selectors.md).
        limits: How large and how deep a file is accepted.

    Raises:
        SelectorError: The selector cannot be read, or names no call.
        InputError: The size of a dynamic axis is missing or not positive, or the model has no such axis.
        FileFormatError: The file is invalid or has no hierarchy.
    """
    file = read_model(path, limits)
    check_functions(file.proto, file.path, MOST_EXPANDED_NODES)
    hierarchy = find_hierarchy(file)
    document = hierarchy.document
    selected = None if select is None else selected_calls(document, select)
    sizes, found = count_nodes(file, axes)
    notes = [*hierarchy.missing, *found.notes]
    owners = {node.id: node.module for node in document.nodes}
    known = {call.id for call in document.calls}
    unowned = sum(owners.get(cost.id) not in known for cost in found.nodes)
    if unowned:
        notes.append(f"{counted(unowned, 'node')} without an owner count for the root")
    nodes = tuple(
        NodeRow(
            id=cost.id,
            op=cost.op,
            call=call if (call := owners.get(cost.id, "")) in known else "",
            macs=cost.work.macs,
            flops=cost.work.flops,
            other_operations=cost.work.other,
            activation_bytes=cost.output_bytes,
            traffic_bytes=cost.traffic,
            weights=tuple(cost.weights),
        )
        for cost in found.nodes
    )
    weights = {name: WeightSize(*size) for cost in found.nodes for name, size in cost.weights.items()}
    uncounted = count_uncounted(found.nodes)
    if sizes.unknown and any(reason == NO_SHAPE for _, reason in uncounted):
        shown = ", ".join(sizes.unknown[:_MOST_AXES])
        notes.append(f"sizes that depend on data are not known: {shown}; --axis {sizes.unknown[0]}=8 gives one")
    return StaticReport(
        file=str(file.path),
        graph_hash=file.graph_hash,
        origin=hierarchy.origin,
        axes=dict(axes or {}),
        total=_summed(nodes, weights),
        calls=_calls(document, nodes, weights),
        nodes=nodes,
        weights=weights,
        selected=selected,
        uncounted=tuple(Uncounted(op, number, reason) for (op, reason), number in uncounted.most_common()),
        notes=tuple(notes),
    )


def count_nodes(file: ModelFile, axes: Mapping[str, int] | None = None) -> tuple[Axes, GraphCost]:
    """The cost of each node of an opened file whose functions were checked, and the sizes of its axes.

    Raises:
        InputError: The size of a dynamic axis is missing or not positive, or the model has no such axis.
    """
    sizes = Axes(axes or {})
    sizes.check(file.proto.graph)
    return sizes, graph_cost(file.proto, file.nodes, sizes)


def static_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport profile --static --format json``."""
    return json_schema("modelexport static profile", StaticReport)


def _calls(
    document: HierarchyDocument, nodes: Iterable[NodeRow], weights: Mapping[str, WeightSize]
) -> tuple[CallCost, ...]:
    classes = {module.path: module.class_name for module in document.modules}
    root = CallRecord(str(ROOT_CALL), "", 0, "")
    calls = {call.id: call for call in (root, *document.calls)}
    grouped = _Groups(weights)
    for node in nodes:
        grouped.add(node, node.call, _chain(node.call, calls))
    return tuple(
        CallCost(
            id=call.id,
            path=call.path,
            class_name=classes.get(call.path, ""),
            parent=call.parent,
            own=grouped.own(call.id),
            total=grouped.total(call.id),
        )
        for call in calls.values()
    )


def _chain(call: str, calls: Mapping[str, CallCost] | Mapping[str, CallRecord]) -> list[str]:
    """The call and its callers, the root included."""
    chain: dict[str, None] = {}
    current: str | None = call
    while current is not None and current in calls and current not in chain:
        chain[current] = None
        current = calls[current].parent
    return [*chain, *([] if "" in chain else [""])]


class _Groups:
    """The costs of groups of nodes; a node is in one group, and inside of several."""

    def __init__(self, weights: Mapping[str, WeightSize]) -> None:
        self._weights = weights
        self._own: dict[str, list[NodeRow]] = {}
        self._total: dict[str, list[NodeRow]] = {}

    @property
    def keys(self) -> Iterable[str]:
        return self._total.keys()

    def add(self, node: NodeRow, own: str, total: Iterable[str]) -> None:
        self._own.setdefault(own, []).append(node)
        for key in total:
            self._total.setdefault(key, []).append(node)

    def own(self, key: str) -> StaticCost:
        return _summed(self._own.get(key, ()), self._weights)

    def total(self, key: str) -> StaticCost:
        return _summed(self._total.get(key, ()), self._weights)


def _summed(nodes: Iterable[NodeRow], weights: Mapping[str, WeightSize]) -> StaticCost:
    number = macs = other = activations = traffic = 0
    read: dict[str, None] = {}
    for node in nodes:
        number += 1
        macs += node.macs
        other += node.other_operations
        activations += node.activation_bytes
        traffic += node.traffic_bytes
        read.update(dict.fromkeys(node.weights))
    return StaticCost(
        nodes=number,
        macs=macs,
        flops=2 * macs,
        other_operations=other,
        parameters=sum(weights[name].elements for name in read),
        parameter_bytes=sum(weights[name].bytes for name in read),
        activation_bytes=activations,
        traffic_bytes=traffic,
        operations_per_byte=(2 * macs + other) / traffic if traffic else None,
    )


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0
