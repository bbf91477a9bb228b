"""The sizes of dynamic axes for which an exported program is valid: its own limits, and what it asserts of sizes.

The assertions are nodes of the program that `torch.export` returns. Decomposing it removes them, so that an ONNX file
runs at other sizes as well, with wrong results.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from modelexport.capture.source_places import is_of_model
from modelexport.hierarchy import SizeRange

# torch treats the sizes 0 and 1 as constants, so that this smallest size is no limit of the model.
_USUAL_MIN = 2
# An axis that can be longer by this factor has no limit; a longer step than this is not searched.
_FAR, _LONGEST_STEP = 2**20, 1024
# So many sizes next to the example are looked at, and of a long range so many in it.
_NEAR = 64
# The multiples of a long step that must be valid.
_TIMES = (1, 2, 3, 5, 8, -1, -2, -3)
_FRAME = re.compile(r'File "(.+)", line (\d+)')


def size_ranges(model: ir.Model, program: torch.export.ExportedProgram) -> dict[str, SizeRange]:
    """Return the sizes to which torch limits dynamic axes of the inputs, by the names of the axes in the graph."""
    users = set(program.graph_signature.user_inputs)
    values = (node.meta.get("val") for node in program.graph.nodes if node.name in users)
    sizes: Iterator[Any] = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    names = (name for value in model.graph.inputs for name in value.shape or ())
    symbolic = {
        str(name): size.node for name, size in zip(names, sizes, strict=False) if isinstance(name, ir.SymbolicDim)
    }
    found = {name: size_range(size, program) for name, size in symbolic.items()}
    return {name: limits for name, limits in found.items() if limits != SizeRange()}


def size_range(size: Any, program: torch.export.ExportedProgram) -> SizeRange:
    """Return the range of a size that is ``factor * symbol + offset`` for torch; none for one of several symbols."""
    if not size.expr.free_symbols:
        return SizeRange(size.hint, size.hint)
    if size.expr.free_symbols not in [{symbol} for symbol in program.range_constraints]:
        return SizeRange()
    (symbol,) = size.expr.free_symbols
    offset = int(size.expr.subs(symbol, 0))
    factor, example = int(size.expr.subs(symbol, 1)) - offset, size.hint
    conditions = dict(_conditions(symbol, size, program))

    def violated(number: int) -> str | None:
        """Return the place of a condition that does not hold for a size; None where all hold."""
        value = (number - offset) // factor
        return next((place for found, place in conditions.items() if not found.subs(symbol, value)), None)

    def are_valid(sizes: Iterable[int]) -> bool:
        return all(violated(number) is None for number in sizes if number > 0)

    def reach(sizes: range) -> tuple[int | None, str]:
        """Return the last of the sizes before something does not hold, and the place of that."""
        end = next((i for i, number in enumerate(sizes[:_NEAR]) if violated(number) is not None), None)
        if end is None:
            end = bisect.bisect_left(sizes, True, key=lambda number: violated(number) is not None)
            # What holds near the example and at the end may fail between: then only what was looked at is valid.
            end = end if are_valid(sizes[: end : max(1, end // _NEAR)]) else min(_NEAR, end)
        return (None, "") if end == len(sizes) else (sizes[end - 1], violated(sizes[end]) or "")

    near = range(factor, _NEAR * factor + 1, factor)
    valid = [n for n in (*near, *(-n for n in near if n < example)) if violated(example + n) is None]
    # Farther away, a step is one that holds several times, in both directions.
    far = (
        n
        for n in range(near[-1], min(example, _LONGEST_STEP) + 1, factor)
        if are_valid(example + k * n for k in _TIMES)
    )
    step = math.gcd(*valid) if valid else next(far, factor)
    (largest, place), (smallest, other) = reach(range(example, example * _FAR, step)), reach(range(example, 0, -step))
    return SizeRange(smallest, largest, step, example % step, place or other)


def _conditions(symbol: Any, size: Any, program: torch.export.ExportedProgram) -> Iterator[tuple[Any, str]]:
    """Yield what must hold for a symbol alone, and the line of the model that needs it where torch knows it."""
    limits = program.range_constraints[symbol]
    yield symbol >= (limits.lower if limits.lower > _USUAL_MIN else 0), _place_of_limit(symbol, size, "lower")
    yield symbol <= limits.upper, _place_of_limit(symbol, size, "upper")
    for node in program.graph.nodes:
        # An assertion takes a condition, and nothing takes its result.
        condition = getattr(node.args[0], "meta", {}).get("val") if node.args and not node.users else None
        if isinstance(condition, torch.SymBool):
            found = condition.node.expr
            # torch also asserts in many places that a size is not 0 or 1.
            if found.free_symbols == {symbol} and getattr(found, "rel_op", "") != "!=":
                frames = _FRAME.findall(node.meta.get("stack_trace") or "")
                places = [f"{Path(file).name}:{line}" for file, line in frames if is_of_model(file)]
                yield found, places[-1] if places else ""


def _place_of_limit(symbol: Any, size: Any, end: str) -> str:
    """The line of the model for which torch limits a symbol; empty where this release of torch does not keep it."""
    places = getattr(size.shape_env, "var_to_range_sloc", {}).get(symbol)
    frame = getattr(getattr(places, end, None), "framework_loc", None)
    file = getattr(frame, "filename", "")
    return f"{Path(file).name}:{frame.lineno}" if frame is not None and file and is_of_model(file) else ""
