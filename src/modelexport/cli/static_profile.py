"""The output of `modelexport profile --static`: the cost of modules without a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modelexport.cli.output import json_text
from modelexport.cli.pages import Section, as_csv, as_text
from modelexport.display import Cell, counted
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.profiling.static_cost import StaticCost, StaticReport, StaticRow

_THOUSAND = 1000
_PREFIXES = ("", "k", "M", "G", "T")
_MOST_UNCOUNTED = 10
_CSV_HEADERS = (
    *("name", "class", "calls", "nodes", "own_macs", "own_flops", "own_other_operations"),
    *("own_parameters", "own_parameter_bytes", "own_activation_bytes", "own_traffic_bytes", "own_operations_per_byte"),
    *("total_macs", "total_flops", "total_other_operations", "total_parameters", "total_parameter_bytes"),
    *("total_activation_bytes", "total_traffic_bytes", "total_operations_per_byte"),
)


def static_output(found: StaticReport, rows: list[StaticRow], by: str, form: str, limit: int, width: int) -> str:
    """A static profile in one of the formats of profiles.

    Raises:
        InputError: The format shows time.
    """
    if form == "json":
        return json_text(found.as_dict())
    if form == "csv":
        return as_csv(_CSV_HEADERS, [_csv_row(row) for row in rows])
    if form not in ("human", "table"):
        raise InputError(f"a static profile has the formats human, json and csv, not {form}: it has no times")
    return _text(found, rows, by, limit, width)


def _csv_row(row: StaticRow) -> tuple[Cell, ...]:
    return (
        *(row.name, row.class_name, row.calls or None, row.own.nodes),
        *(cell for cost in (row.own, row.total) for cell in _numbers(cost)),
    )


def _numbers(cost: StaticCost) -> tuple[Cell, ...]:
    return (
        *(cost.macs, cost.flops, cost.other_operations, cost.parameters, cost.parameter_bytes),
        *(cost.activation_bytes, cost.traffic_bytes, cost.operations_per_byte),
    )


def _text(found: StaticReport, rows: list[StaticRow], by: str, limit: int, width: int) -> str:
    whole = found.total.flops
    power = next((p for p in range(len(_PREFIXES)) if whole < 10 * _THOUSAND ** (p + 1)), len(_PREFIXES) - 1)
    unit, scale = f"{_PREFIXES[power]}FLOPs", _THOUSAND**power
    headers = (
        *(by, "class name" if by == "class" else "class", "calls", f"own {unit}", "own %"),
        *("total", "total %", "other", "params", "activations", "traffic", "ops/B", "nodes"),
    )
    optional = ("nodes", "traffic", "calls", "activations", headers[1], "total %", "own %", "total", "other")
    shown = rows[: limit or None]
    table = Section("", (), headers, tuple(_cells(row, scale, whole) for row in shown), optional=optional)
    left = len(rows) - len(shown)
    more = [f"… and {counted(left, 'more row')} (--limit 0 shows all)"] if left else []
    return as_text(found.file, [Section("", (*_head(found), "")), table, Section("", (*more, *_tail(found)))], width)


def _head(found: StaticReport) -> Iterator[str]:
    cost = found.total
    axes = "".join(f", {name}={size:,}" for name, size in found.axes.items())
    yield f"static cost of one run, from shapes; nothing was run{axes}"
    yield (
        f"{_scaled(cost.flops)}FLOPs ({_scaled(cost.macs)}MACs), {_scaled(cost.other_operations)} other "
        f"operations, {counted(cost.parameters, 'parameter')} ({_scaled(cost.parameter_bytes)}B), "
        f"activations {_scaled(cost.activation_bytes)}B, memory traffic {_scaled(cost.traffic_bytes)}B"
    )


def _tail(found: StaticReport) -> Iterator[str]:
    yield ""
    yield "FLOPs: two for each MAC of matrix products and convolutions; other: all other arithmetic, in the same unit"
    yield "ops/B: FLOPs and other for each byte of memory traffic without fusion; low where memory is the limit"
    yield "other, params and ops/B are those of own nodes"
    if found.selected is not None:
        yield f"selected: {counted(len(found.selected), 'call')} of {len(found.calls):,}"
    for entry in found.uncounted[:_MOST_UNCOUNTED]:
        yield f"not counted: {counted(entry.nodes, 'node')} {entry.op} ({entry.reason})"
    hidden = len(found.uncounted) - _MOST_UNCOUNTED
    if hidden > 0:
        yield f"not counted: … and {counted(hidden, 'more operator')} (--format json has all)"
    yield from (f"note: {note}" for note in found.notes)


def _cells(row: StaticRow, scale: int, whole: int) -> tuple[Cell, ...]:
    return (
        *(row.name, None if row.class_name == row.name else row.class_name, row.calls or None),
        *(row.own.flops / scale, 100 * row.own.flops / whole if whole else None),
        *(row.total.flops / scale, 100 * row.total.flops / whole if whole else None),
        *(row.own.other_operations / scale, row.own.parameters),
        *(f"{_scaled(row.own.activation_bytes)}B", f"{_scaled(row.own.traffic_bytes)}B"),
        *(row.own.operations_per_byte, row.own.nodes),
    )


def _scaled(amount: float) -> str:
    """A number with three digits and the prefix of a unit: ``3.29 k``."""
    for prefix in _PREFIXES[:-1]:
        if amount < _THOUSAND:
            return f"{amount:.3g} {prefix}"
        amount /= _THOUSAND
    return f"{amount:.3g} {_PREFIXES[-1]}"
