"""The sizes of dynamic axes for which an exported program is valid: its own limits, and what it asserts of sizes.

The assertions are nodes of the program that `torch.export` returns. Decomposing it removes them, so that an ONNX file
runs at other sizes as well, with wrong results.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from modelexport.capture import SizeRange
from modelexport.capture.source_places import is_of_model

# torch treats the sizes 0 and 1 as constants, so that this smallest size is no limit of the model.
_USUAL_MIN = 2
# An axis that can be longer by this factor has no limit; a longer step than this is not searched.
_FAR, _LONGEST_STEP = 2**20, 1024
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
    # A size that depends on several symbols has no range of its own.
    known = [{symbol} for symbol in program.range_constraints]
    single = {name: size for name, size in symbolic.items() if size.expr.free_symbols in known}
    found = {name: _range(size, program) for name, size in single.items()}
    return {name: limits for name, limits in found.items() if limits != SizeRange()}


def _range(size: Any, program: torch.export.ExportedProgram) -> SizeRange:
    """Return the range of a size, which is ``factor * symbol + offset`` for torch, from what is known of its symbol."""
    (symbol,) = size.expr.free_symbols
    offset = int(size.expr.subs(symbol, 0))
    factor, example = int(size.expr.subs(symbol, 1)) - offset, size.hint
    conditions = list(_conditions(symbol, program))

    def violated(number: int) -> list[str]:
        """Return the places of the conditions that do not hold for a size."""
        return [place for found, place in conditions if not found.subs(symbol, (number - offset) // factor)]

    def reach(sizes: range) -> tuple[int | None, str]:
        """Return the last of the sizes before something does not hold, and the place of that."""
        end = bisect.bisect_left(sizes, True, key=lambda number: bool(violated(number)))
        return (None, "") if end == len(sizes) else (sizes[end - 1], max(violated(sizes[end])))

    steps = range(factor, min(example, _LONGEST_STEP) + 1, factor)
    step = next((step for step in steps if not violated(example + step) + violated(example + 2 * step)), factor)
    (largest, place), (smallest, other) = reach(range(example, example * _FAR, step)), reach(range(example, 0, -step))
    return SizeRange(smallest, largest, step, example % step, place or other)


def _conditions(symbol: Any, program: torch.export.ExportedProgram) -> Iterator[tuple[Any, str]]:
    """Yield what must hold for a symbol alone, and the line of the model that needs it where torch knows it."""
    limits = program.range_constraints[symbol]
    yield symbol >= (limits.lower if limits.lower > _USUAL_MIN else 0), ""
    yield symbol <= limits.upper, ""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            asserted = getattr(node.args[0], "meta", {}).get("val")
            found = asserted.node.expr if isinstance(asserted, torch.SymBool) else symbol >= 0
            # torch also asserts in many places that a size is not 0 or 1.
            if found.free_symbols == {symbol} and getattr(found, "rel_op", "") != "!=":
                frames = _FRAME.findall(node.meta.get("stack_trace") or "")
                places = [f"{Path(file).name}:{line}" for file, line in frames if is_of_model(file)]
                yield found, places[-1] if places else ""
