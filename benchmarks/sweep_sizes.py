"""A file of the sweep with dynamic axes, run at other sizes that PyTorch takes."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from benchmarks.package_verdicts import is_outside, is_said
from benchmarks.sweep_judge import NOT_COMPARABLE, REFUSED, Call, Judge

# So many other sizes that PyTorch takes, for each size alone and for all together.
_SIZES = 3
_MOST_SYMBOLS = 6
_MOST_ELEMENTS = 2**23
_SECONDS = 90
# Names in an expression of sizes; what is followed by a parenthesis is a function.
_NAME = re.compile(r"[A-Za-z_]\w*(?!\w*\()")

Json = dict[str, Any]
# The size of an axis as the file has it, by the position of the tensor and the number of the axis.
_Axes = dict[tuple[int, int], sympy.Expr]


def run_sizes(
    path: Path,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ranges: Mapping[str, Sequence[int | None]],
    notes: Sequence[str],
) -> Json:
    """The symbolic axes of the file, the outcome of each run, and the axes that are fixed though PyTorch frees them.

    Args:
        path: The file.
        model: The model.
        args: The positional arguments of the example.
        kwargs: The others.
        ranges: The sizes for which the file is said to be right, by symbol.
        notes: What the result says.
    """
    example = Call(args, kwargs)
    judge = Judge(path, model, example)
    shown = {
        value.name: [size.dim_value if size.HasField("dim_value") else size.dim_param for size in _dims(value)]
        for value in judge.inputs
    }
    found: Json = {"inputs": shown, "runs": [], "fixed": []}
    if not judge.maps_inputs_itself:
        return {**found, "problem": "the inputs of the file are not the tensors of the example"}
    ends = time.process_time() + _SECONDS
    axes = _axes(judge)
    runs = [judge.run(example, "example")]
    for call, sizes in _changes(judge, example, axes, runs):
        if time.process_time() > ends:
            found["problem"] = "out of time"
            break
        run = {**judge.run(call, ", ".join(f"{name}={size}" for name, size in sizes.items())), "sizes": sizes}
        stated = {**_sizes_by_dimension(judge, call), **sizes}
        run["outside"] = any(is_outside(size, ranges.get(name)) for name, size in stated.items())
        runs.append(run)
    refused = [run for run in runs if run["outcome"] == REFUSED]
    found["runs"] = [run for run in runs if run["outcome"] != REFUSED]
    found["refused"] = len(refused)
    found["fixed"] = [
        {"axis": name, "said": is_said(name, notes)} for name in _fixed_and_free(judge, example, axes, ends + _SECONDS)
    ]
    return found


def _dims(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


def _axes(judge: Judge) -> _Axes:
    """The axes of the inputs without a fixed size."""
    found: _Axes = {}
    for value, place in zip(judge.inputs, judge.positions, strict=True):
        for axis, size in enumerate(_dims(value)):
            if not size.HasField("dim_value"):
                found[place or 0, axis] = _expression(size.dim_param or f"{value.name}__{axis}")
    return found


def _expression(text: str) -> sympy.Expr:
    names = {name: sympy.Symbol(name) for name in _NAME.findall(text)}
    try:
        return sympy.sympify(text, locals=names)
    except (sympy.SympifyError, TypeError, AttributeError):
        return sympy.Symbol(text)


def _example_sizes(example: Call, axes: _Axes) -> dict[str, int]:
    """The size of each symbol in the example: the smallest with which its axes have their sizes."""
    leaves, sizes = example.leaves(), {}
    for (place, axis), expression in sorted(axes.items(), key=lambda entry: not entry[1].is_Symbol):
        size = leaves[place].shape[axis]
        unknown = [symbol for symbol in expression.free_symbols if str(symbol) not in sizes]
        for symbol in unknown:
            tried = (n for n in range(1, size + 1) if expression.subs({**sizes, str(symbol): n}) == size)
            sizes[str(symbol)] = size if expression.is_Symbol else next(tried, size)
    return sizes


def _changes(judge: Judge, example: Call, axes: _Axes, runs: list[Json]) -> Iterator[tuple[Call, dict[str, int]]]:
    """Other sizes of all symbols together, then of each alone, until PyTorch has taken three of each.

    Args:
        judge: Runs the file.
        example: The example.
        axes: The axes without a fixed size.
        runs: The runs so far; the caller adds to them what this yields.
    """
    usual = _example_sizes(example, axes)
    symbols = list(usual)[:_MOST_SYMBOLS]
    groups = [list(usual)] if len(usual) > 1 else []
    groups += [[symbol] for symbol in symbols]
    for group in groups:
        accepted = 0
        for number in range(len(_other_sizes(1))):
            sizes = {symbol: _other_sizes(usual[symbol])[number] for symbol in group}
            if accepted == _SIZES or any(not size or size == usual[symbol] for symbol, size in sizes.items()):
                continue
            call = _resized(example, axes, {**usual, **sizes})
            if call is not None:
                yield call, sizes
                accepted += runs[-1]["outcome"] not in (REFUSED, NOT_COMPARABLE)


def _other_sizes(size: int) -> list[int]:
    """The sizes to try, in order: 0 where there is none."""
    found = [size + 1, 2 * size, size - 1, 2 * size + 3, size // 2]
    found += [size + more for more in (2, 4, 8, 16, 32, 64)]
    return [other if other not in found[:place] else 0 for place, other in enumerate(found)]


def _resized(example: Call, axes: _Axes, sizes: Mapping[str, int]) -> Call | None:
    """The call at these sizes: elements are repeated, or those at the end are left out. None without such sizes."""
    leaves = example.leaves()
    for (place, axis), expression in axes.items():
        size = expression.subs(sizes)
        if not size.is_Integer or size < 1:
            return None
        leaves[place] = _with_size(leaves[place], axis, int(size))
        if leaves[place].numel() > _MOST_ELEMENTS:
            return None
    return example.with_leaves(leaves)


def _with_size(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    if not tensor.shape[axis]:
        return tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])
    return tensor.index_select(axis, torch.arange(size) % tensor.shape[axis]).contiguous()


def _sizes_by_dimension(judge: Judge, call: Call) -> dict[str, int]:
    leaves = call.leaves()
    return {
        size.dim_param: leaves[place or 0].shape[axis]
        for value, place in zip(judge.inputs, judge.positions, strict=True)
        for axis, size in enumerate(_dims(value))
        if size.dim_param
    }


def _fixed_and_free(judge: Judge, example: Call, axes: _Axes, ends: float) -> list[str]:
    """The axes with a fixed size in the file for which PyTorch takes a larger and a smaller one.

    Each axis is tried alone, then those of equal number and size together.
    """
    leaves, names = example.leaves(), judge.leaf_names()
    fixed = [
        (place, axis)
        for place in judge.positions
        if place is not None
        for axis, size in enumerate(leaves[place].shape)
        if (place, axis) not in axes and size > 1
    ]

    def key(of: tuple[int, int]) -> tuple[int, int]:
        return of[1], leaves[of[0]].shape[of[1]]

    together = [list(group) for _, group in itertools.groupby(sorted(fixed, key=key), key)]
    found: set[tuple[int, int]] = set()
    for group in (*([of] for of in fixed), *(group for group in together if len(group) > 1)):
        if time.process_time() < ends and found.isdisjoint(group) and _is_free(judge, example, group):
            found.update(group)
    return sorted(f"{names[place]}:{axis}" for place, axis in found)


def _is_free(judge: Judge, example: Call, group: Sequence[tuple[int, int]]) -> bool:
    usual = [getattr(value, "shape", ()) for value in judge.eager(example)]
    size = example.leaves()[group[0][0]].shape[group[0][1]]
    # A model with strides takes only multiples.
    pairs = ((size + 1, size - 1), (2 * size, size // 2))
    return any(all(_takes(judge, example, group, other, usual) for other in pair) for pair in pairs)


def _takes(judge: Judge, example: Call, group: Sequence[tuple[int, int]], size: int, usual: list[Any]) -> bool:
    leaves = example.leaves()
    for place, axis in group:
        leaves[place] = _with_size(leaves[place], axis, size)
    try:
        found = [getattr(value, "shape", ()) for value in judge.eager(example.with_leaves(leaves))]
    except Exception:  # noqa: BLE001  a model may refuse a size in any way
        return False
    return [len(shape) for shape in found] == [len(shape) for shape in usual]
