"""The weights of two compared models: which came, went or changed; their contents only where that is asked for."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from modelexport.analysis.comparison.model_index import Outline, is_small, small_content, tensor_bytes
from modelexport.analysis.comparison.node_changes import type_name
from modelexport.analysis.comparison.node_matching import Matching
from modelexport.errors import FileFormatError
from modelexport.graph import SMALL_TENSOR_BYTES
from modelexport.limits import DEFAULT_LIMITS
from modelexport.storage import DataFolder, ModelFile, read_proto

# Contents are compared in pieces of this size, however large a weight is.
_PIECE_BYTES = 2**22


class WeightTotals(msgspec.Struct, frozen=True):
    """The weights of one model: from their shapes and types, without reading them."""

    tensors: int
    elements: int
    bytes: int
    bytes_by_type: dict[str, int]


class WeightChange(msgspec.Struct, frozen=True):
    """A weight that is not the same in both models; `values` means that a small one has another content."""

    kind: Literal["added", "removed", "changed", "values"]
    before: str | None = None
    after: str | None = None
    detail: str = ""


class ContentChange(msgspec.Struct, frozen=True):
    """A weight whose content differs, and by how much at most, where its type has numbers to subtract."""

    before: str
    after: str
    largest_difference: float | None


class ContentReport(msgspec.Struct, frozen=True):
    """What comparing the contents of weights gave: how many were read, and those that differ."""

    compared: int
    different: int
    weights: tuple[ContentChange, ...]


WeightPair = tuple[TensorProto, TensorProto]


def weight_totals(side: Outline) -> WeightTotals:
    """Count a model's weights."""
    by_type: Counter[str] = Counter()
    elements = 0
    for tensor in side.tensors.values():
        by_type[type_name(tensor.data_type)] += tensor_bytes(tensor)
        elements += math.prod(tensor.dims)
    return WeightTotals(len(side.tensors), elements, by_type.total(), dict(sorted(by_type.items())))


def compare_weights(matching: Matching) -> tuple[list[WeightPair], list[WeightChange]]:
    """The weights that paired nodes take in the same place, and what differs among all of them."""
    before, after = matching.before, matching.after
    partners = _paired_weights(matching)
    pairs, changes = [], []
    for value, tensor in before.tensors.items():
        partner = partners.get(value)
        if partner is None:
            changes.append(WeightChange("removed", before=before.names[value], detail=_looks(tensor)))
            continue
        other = after.tensors[partner]
        pairs.append((tensor, other))
        change = _change(tensor, other)
        if change is not None:
            changes.append(WeightChange(*change[:1], before.names[value], after.names[partner], change[1]))
    taken = set(partners.values())
    changes += [
        WeightChange("added", after=after.names[value], detail=_looks(tensor))
        for value, tensor in after.tensors.items()
        if value not in taken
    ]
    return pairs, changes


def _paired_weights(matching: Matching) -> dict[int, int]:
    before, after = matching.before, matching.after
    partners: dict[int, int] = {}
    taken: set[int] = set()

    def join(first: int, second: int) -> None:
        if first not in partners and second not in taken:
            partners[first] = second
            taken.add(second)

    for a, b in enumerate(matching.to_after):
        if b < 0:
            continue
        for v, w in zip(before.inputs[a], after.inputs[b], strict=False):
            if v in before.tensors and w in after.tensors:
                join(v, w)
    # Those that no paired node takes: the same name, type and shape is the same weight.
    named = {(after.names[w], *_shape(tensor)): w for w, tensor in after.tensors.items()}
    for v, tensor in before.tensors.items():
        same = named.get((before.names[v], *_shape(tensor)))
        if same is not None:
            join(v, same)
    return partners


def _change(first: TensorProto, second: TensorProto) -> tuple[Literal["changed", "values"], str] | None:
    if _shape(first) != _shape(second):
        return "changed", f"{_looks(first)} → {_looks(second)}"
    if is_small(first) and is_small(second) and small_content(first) != small_content(second):
        return "values", _looks(first)
    return None


def _shape(tensor: TensorProto) -> tuple[int, tuple[int, ...]]:
    return tensor.data_type, tuple(tensor.dims)


def _looks(tensor: TensorProto) -> str:
    return f"{type_name(tensor.data_type)}{list(tensor.dims)}"


# --- contents --------------------------------------------------------------------------------------------------


def compare_contents(before: ModelFile, after: ModelFile, pairs: list[WeightPair]) -> ContentReport:
    """Read the contents of paired weights of one type and shape, piece by piece, and compare them.

    Raises:
        FileFormatError: A weight's content is missing or not as long as its shape says.
    """
    alike = [pair for pair in pairs if _shape(pair[0]) == _shape(pair[1])]
    first, second = _Contents(before), _Contents(after)
    found = []
    for one, other in alike:
        if one.data_type == TensorProto.STRING:
            equal, largest = first.strings(one) == second.strings(other), None
        else:
            equal, largest = _difference(one, first.pieces(one), second.pieces(other))
        if not equal:
            found.append(ContentChange(one.name, other.name, largest))
    return ContentReport(len(alike), len(found), tuple(found))


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


class _Contents:
    """Where the contents of one file's weights are read from."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._folder = DataFolder(file.path, DEFAULT_LIMITS)
        self._whole: dict[str, TensorProto] | None = None

    def pieces(self, tensor: TensorProto) -> Iterator[bytes]:
        """The content of a weight in pieces of the same size on both sides."""
        size = tensor_bytes(tensor)
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from self._external(tensor, size)
            return
        content = self._inline(tensor)
        if len(content) != size:
            raise FileFormatError(
                f"{self._file.path}: weight {tensor.name!r} has {len(content)} bytes, and its shape needs {size}"
            )
        yield from (content[start : start + _PIECE_BYTES] for start in range(0, len(content), _PIECE_BYTES))

    def strings(self, tensor: TensorProto) -> list[bytes]:
        """The elements of a string tensor."""
        return list(self._with_content(tensor).string_data)

    def _with_content(self, tensor: TensorProto) -> TensorProto:
        """The tensor with its content, which `read_model` skips for large weights."""
        if tensor.data_type == TensorProto.STRING:
            is_complete = len(tensor.string_data) == math.prod(tensor.dims)
        else:
            is_complete = bool(tensor.raw_data) or tensor_bytes(tensor) <= SMALL_TENSOR_BYTES
        if is_complete:
            return tensor
        if self._whole is None:
            proto = read_proto(self._file.path, weights=True)
            self._whole = {weight.name: weight for weight in proto.graph.initializer}
        return self._whole.get(tensor.name, tensor)

    def _inline(self, tensor: TensorProto) -> bytes:
        tensor = self._with_content(tensor)
        if tensor.raw_data:
            return tensor.raw_data
        try:
            return onnx.numpy_helper.to_array(tensor).tobytes()
        except (ValueError, TypeError, KeyError) as error:
            raise FileFormatError(f"{self._file.path}: weight {tensor.name!r} cannot be read: {error}") from error

    def _external(self, tensor: TensorProto, size: int) -> Iterator[bytes]:
        self._folder.check(f"weight {tensor.name!r}", tensor)
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = self._folder.path / entries["location"]
        try:
            with path.open("rb") as opened:
                opened.seek(int(entries.get("offset", "0")))
                while size > 0:
                    piece = opened.read(min(size, _PIECE_BYTES))
                    if not piece:
                        raise FileFormatError(f"{path} ends within weight {tensor.name!r}: it is damaged")
                    size -= len(piece)
                    yield piece
        except OSError as error:
            raise FileFormatError(
                f"{path} cannot be read, where weight {tensor.name!r} lies: {error.strerror or error}"
            ) from error
