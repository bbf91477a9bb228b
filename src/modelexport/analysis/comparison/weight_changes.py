"""Compare the weights of two models: added, removed and changed ones; their contents only if requested."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np
import onnx_ir as ir
from onnx import TensorProto

from modelexport.analysis.comparison.model_index import ModelIndex, constant_content, is_small
from modelexport.analysis.comparison.node_changes import type_name
from modelexport.analysis.comparison.node_matching import NodeMatching
from modelexport.storage import ModelFile, WeightReader, content_bytes


class WeightTotals(msgspec.Struct, frozen=True):
    """The weights of one model, counted by shape and type without reading them."""

    tensors: int
    elements: int
    bytes: int
    bytes_by_type: dict[str, int]


class WeightChange(msgspec.Struct, frozen=True):
    """A weight that differs between the models; for `values`, a small one whose content differs."""

    kind: Literal["added", "removed", "changed", "values"]
    before: str | None = None
    after: str | None = None
    detail: str = ""


class ContentChange(msgspec.Struct, frozen=True):
    """A weight whose content differs; numeric ones with the largest difference of an element."""

    before: str
    after: str
    largest_difference: float | None


class ContentReport(msgspec.Struct, frozen=True):
    """The result of comparing the contents of weights: how many were compared, and which differ."""

    compared: int
    different: int
    weights: tuple[ContentChange, ...]


WeightPair = tuple[TensorProto, TensorProto]


def weight_totals(side: ModelIndex) -> WeightTotals:
    """Count a model's weights."""
    by_type: Counter[str] = Counter()
    elements = 0
    for tensor in side.tensors.values():
        by_type[type_name(tensor.data_type)] += content_bytes(tensor)
        elements += math.prod(tensor.dims)
    return WeightTotals(len(side.tensors), elements, by_type.total(), dict(sorted(by_type.items())))


def compare_weights(matching: NodeMatching) -> tuple[list[WeightPair], list[WeightChange]]:
    """Match the weights: the pairs that matched nodes consume at the same input, and all changes."""
    before, after = matching.before, matching.after
    matches = _match_weights(matching)
    pairs, changes = [], []
    for value, tensor in before.tensors.items():
        match = matches.get(value)
        if match is None:
            changes.append(WeightChange("removed", before=before.names[value], detail=_type_and_shape(tensor)))
            continue
        other = after.tensors[match]
        pairs.append((tensor, other))
        names = before.names[value], after.names[match]
        if _shape(tensor) != _shape(other):
            changes.append(WeightChange("changed", *names, f"{_type_and_shape(tensor)} → {_type_and_shape(other)}"))
        elif is_small(tensor) and is_small(other) and constant_content(tensor) != constant_content(other):
            changes.append(WeightChange("values", *names, _type_and_shape(tensor)))
    taken = set(matches.values())
    changes += [
        WeightChange("added", after=after.names[value], detail=_type_and_shape(tensor))
        for value, tensor in after.tensors.items()
        if value not in taken
    ]
    return pairs, changes


def _match_weights(matching: NodeMatching) -> dict[int, int]:
    before, after = matching.before, matching.after
    matches: dict[int, int] = {}
    taken: set[int] = set()

    def match(first: int, second: int) -> None:
        if first not in matches and second not in taken:
            matches[first] = second
            taken.add(second)

    for a, b in enumerate(matching.to_after):
        if b < 0:
            continue
        for v, w in zip(before.inputs[a], after.inputs[b], strict=False):
            if v in before.tensors and w in after.tensors:
                match(v, w)
    # Weights that no matched node consumes are matched by name, type and shape.
    named = {(after.names[w], *_shape(tensor)): w for w, tensor in after.tensors.items()}
    for v, tensor in before.tensors.items():
        same = named.get((before.names[v], *_shape(tensor)))
        if same is not None:
            match(v, same)
    return matches


def _shape(tensor: TensorProto) -> tuple[int, tuple[int, ...]]:
    return tensor.data_type, tuple(tensor.dims)


def _type_and_shape(tensor: TensorProto) -> str:
    return f"{type_name(tensor.data_type)}{list(tensor.dims)}"


def compare_contents(before: ModelFile, after: ModelFile, pairs: list[WeightPair]) -> ContentReport:
    """Read and compare the contents of matched weights of the same type and shape."""
    comparable = [pair for pair in pairs if _shape(pair[0]) == _shape(pair[1])]
    first, second = WeightReader(before), WeightReader(after)
    found = []
    for one, other in comparable:
        if one.data_type == TensorProto.STRING:
            equal, largest = first.strings(one) == second.strings(other), None
        else:
            equal, largest = _difference(one, first.chunks(one), second.chunks(other))
        if not equal:
            found.append(ContentChange(one.name, other.name, largest))
    return ContentReport(len(comparable), len(found), tuple(found))


def _difference(tensor: TensorProto, first: Iterator[bytes], second: Iterator[bytes]) -> tuple[bool, float | None]:
    equal, largest = True, 0.0
    numbers: np.dtype | None = None
    with contextlib.suppress(TypeError, ValueError):
        numbers = ir.DataType(tensor.data_type).numpy()
    for one, other in zip(first, second, strict=True):
        if one == other:
            continue
        equal = False
        if numbers is None or numbers.kind not in "fiu" or len(one) % numbers.itemsize or len(one) != len(other):
            numbers = None
            continue
        with np.errstate(all="ignore"):
            gap = np.abs(np.frombuffer(one, numbers).astype(np.float64) - np.frombuffer(other, numbers))
        largest = max(largest, float(np.nanmax(gap, initial=0.0)))
    return equal, None if numbers is None else largest
