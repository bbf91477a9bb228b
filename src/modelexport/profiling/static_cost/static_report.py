"""The static cost of a file by module call: arithmetic, weights, activations and memory traffic, own and total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from modelexport.display import Summary, counted, summarized
from modelexport.hierarchy import HierarchyDocument, json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.profiling.static_cost.graph_cost import NodeCost, graph_cost
from modelexport.profiling.static_cost.tensor_shapes import Axes
from modelexport.storage import find_hierarchy, read_model


class StaticCost(msgspec.Struct, frozen=True):
    """The cost of some nodes in one run of the model.

    Attributes:
        nodes: The number of nodes.
        macs: Multiply-accumulates.
        flops: Floating-point operations: two for each multiply-accumulate, one for each other step on an element.
        parameters: Elements of the initializers that the nodes read, each initializer once, without those of types
            that shapes, indices and masks have (32-bit and 64-bit integers, booleans).
        parameter_bytes: Their size.
        activation_bytes: The size of the outputs of the nodes.
        traffic_bytes: The size of all inputs and outputs, each time a node reads or writes them: the memory traffic of
            a run without fusion.
        flops_per_byte: FLOPs for each byte of traffic; None without traffic. On a roofline, a value below the
            machine's FLOPs per second by its bytes per second says that memory limits the module.
    """

    nodes: int
    macs: int
    flops: int
    parameters: int
    parameter_bytes: int
    activation_bytes: int
    traffic_bytes: int
    flops_per_byte: float | None


class CallCost(msgspec.Struct, frozen=True):
    """A module call: its id, module and caller, the cost of its own nodes, and that with all calls inside of it."""

    id: str
    path: str
    class_name: str
    parent: str | None
    own: StaticCost
    total: StaticCost


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
        operators: The cost of all nodes of each operator, those with the most FLOPs first.
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
    operators: dict[str, StaticCost]
    uncounted: tuple[Uncounted, ...]
    notes: tuple[str, ...]
    schema_version: int = 1


def profile_statically(
    path: str | Path, *, axes: Mapping[str, int] | None = None, limits: ReadLimits = DEFAULT_LIMITS
) -> StaticReport:
    """Count the arithmetic, weights, activations and memory traffic of a file by module call, without running it.

    Args:
        path: The file.
        axes: The sizes of dynamic axes by name; an axis without a name is ``INPUT.POSITION``.
        limits: How large and how deep a file is accepted.

    Raises:
        InputError: The size of a dynamic axis is missing or not positive, or the model has no such axis.
        FileFormatError: The file is invalid or has no hierarchy.
    """
    file = read_model(path, limits)
    hierarchy = find_hierarchy(file)
    sizes = Axes(axes or {})
    sizes.check(file.proto.graph)
    found = graph_cost(file.proto, file.nodes, sizes)
    document = hierarchy.document
    by_call, unowned = _by_owner(document, found.nodes)
    notes = [*hierarchy.missing, *found.notes]
    if unowned:
        notes.append(f"{counted(unowned, 'node')} without an owner count for the root")
    uncounted = Counter(entry for cost in found.nodes for entry in cost.uncounted)
    operators: dict[str, list[NodeCost]] = {}
    for cost in found.nodes:
        operators.setdefault(cost.op, []).append(cost)
    return StaticReport(
        file=str(file.path),
        graph_hash=file.graph_hash,
        origin=hierarchy.origin,
        axes=dict(axes or {}),
        total=_summed(found.nodes),
        calls=_calls(document, by_call),
        operators=dict(
            sorted(
                ((op, _summed(costs)) for op, costs in operators.items()),
                key=lambda entry: (-entry[1].flops, -entry[1].traffic_bytes, entry[0]),
            )
        ),
        uncounted=tuple(Uncounted(op, number, reason) for (op, reason), number in uncounted.most_common()),
        notes=tuple(notes),
    )


def static_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport profile --static --format json``."""
    return json_schema("modelexport static profile", StaticReport)


def _by_owner(document: HierarchyDocument, costs: Iterable[NodeCost]) -> tuple[dict[str, list[NodeCost]], int]:
    owners = {node.id: node.module for node in document.nodes}
    found: dict[str, list[NodeCost]] = {call.id: [] for call in document.calls}
    unowned = 0
    for cost in costs:
        owned = found.get(owners.get(cost.id, ""))
        if owned is None:
            unowned += 1
            owned = found.setdefault("", [])
        owned.append(cost)
    return found, unowned


def _calls(document: HierarchyDocument, by_call: Mapping[str, list[NodeCost]]) -> tuple[CallCost, ...]:
    classes = {module.path: module.class_name for module in document.modules}
    totals = {call_id: list(costs) for call_id, costs in by_call.items()}
    # Callers come before the calls inside of them.
    for call in reversed(document.calls):
        if call.parent is not None and call.parent in totals:
            totals[call.parent] += totals[call.id]
    return tuple(
        CallCost(
            id=call.id,
            path=call.path,
            class_name=classes.get(call.path, ""),
            parent=call.parent,
            own=_summed(by_call[call.id]),
            total=_summed(totals[call.id]),
        )
        for call in document.calls
    )


def _summed(costs: Iterable[NodeCost]) -> StaticCost:
    nodes = macs = flops = activations = traffic = 0
    weights: dict[str, tuple[int, int]] = {}
    for cost in costs:
        nodes += 1
        macs += cost.work.macs
        flops += cost.work.flops
        activations += cost.output_bytes
        traffic += cost.traffic
        weights.update(cost.weights)
    return StaticCost(
        nodes=nodes,
        macs=macs,
        flops=flops,
        parameters=sum(elements for elements, _ in weights.values()),
        parameter_bytes=sum(size for _, size in weights.values()),
        activation_bytes=activations,
        traffic_bytes=traffic,
        flops_per_byte=flops / traffic if traffic else None,
    )
