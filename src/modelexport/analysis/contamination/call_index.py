"""The calls of a document by number: who runs inside whom, and which of a graph's tensors cross each one's boundary."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import onnx

from modelexport.graph import FlowGraph, TensorType
from modelexport.hierarchy import BoundaryTensor, CallRecord, HierarchyDocument, TensorInfo

ROOT = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One side of a call's boundary: its tensors in the graph, and what the graph no longer has under a name."""

    tensors: frozenset[int]
    unnamed: tuple[TensorInfo | None, ...]

    def may_have(self, tensor: int, kind: TensorType | None) -> bool:
        """Whether the tensor is among them, or may be one of those that have no name in the graph."""
        return tensor in self.tensors or any(may_be(info, kind) for info in self.unnamed)


class CallIndex:
    """The calls of a document, in its order; the root's is number `ROOT`.

    Attributes:
        ids: The calls' identities.
        numbers: The calls by identity.
        parents: For each call the one that made it; the root's own is itself.
        inputs: For each call what enters it.
        outputs: For each call what leaves it.
        recorded_outputs: For each call what the document itself says left it.
        recorded: For each call whether its boundary is known at all.
    """

    def __init__(self, document: HierarchyDocument, flow: FlowGraph) -> None:
        records = _root_first(document.calls)
        self.records = records
        self.ids = [record.id for record in records]
        self.numbers = {identity: number for number, identity in enumerate(self.ids)}
        self.parents = [self.numbers.get(record.parent, ROOT) if record.parent else ROOT for record in records]
        self.inputs = [_side(record.inputs, flow) for record in records]
        self.outputs = [_side(record.outputs, flow) for record in records]
        self.recorded_outputs = self.outputs
        self.recorded = [bool(record.inputs or record.outputs) for record in records]
        self._depths = _depths(self.parents)

    def with_boundaries(self, inputs: Mapping[int, Side], outputs: Mapping[int, Side]) -> CallIndex:
        """The same calls, with what a run has shown of these boundaries."""
        other = copy.copy(self)
        other.inputs = [inputs.get(call, side) for call, side in enumerate(self.inputs)]
        other.outputs = [outputs.get(call, side) for call, side in enumerate(self.outputs)]
        other.recorded = [known or call in inputs or call in outputs for call, known in enumerate(self.recorded)]
        return other

    def __len__(self) -> int:
        return len(self.ids)

    def chain(self, call: int) -> Iterator[int]:
        """The call and its callers, innermost first, without the root."""
        while call != ROOT and self._depths[call]:
            yield call
            call = self.parents[call]

    def encloses(self, outer: int, inner: int) -> bool:
        """Whether `inner` is `outer` or ran inside of it."""
        if outer == ROOT:
            return True
        while self._depths[inner] > self._depths[outer]:
            inner = self.parents[inner]
        return inner == outer

    def between(self, inner: int, outer: int) -> Iterator[int]:
        """The calls around `inner`, itself first, that `outer` did not run inside of."""
        for call in self.chain(inner):
            if self.encloses(call, outer):
                return
            yield call

    def innermost_around(self, calls: Iterable[int]) -> int:
        """The innermost call that all of these ran inside of, or are."""
        remaining = iter(calls)
        around = next(remaining, ROOT)
        for call in remaining:
            while not self.encloses(around, call):
                around = self.parents[around]
        return around


def _root_first(calls: tuple[CallRecord, ...]) -> list[CallRecord]:
    roots = [call for call in calls if call.parent is None]
    root = roots[0] if roots else CallRecord(id="", path="", index=0, tag="/")
    return [root, *(call for call in calls if call is not root)]


def _depths(parents: list[int]) -> list[int]:
    """How far each call is from the root. Calls of a damaged document that make each other hang off the root."""
    depths = [0] * len(parents)
    for start in range(1, len(parents)):
        way, current, seen = [], start, set()
        while current != ROOT and not depths[current]:
            if current in seen:
                parents[current] = ROOT
                break
            seen.add(current)
            way.append(current)
            current = parents[current]
        for number in reversed(way):
            depths[number] = depths[parents[number]] + 1
    return depths


def _side(boundary: tuple[BoundaryTensor, ...], flow: FlowGraph) -> Side:
    names = (tensor.tensor if tensor.tensor is not None else tensor.stand_in for tensor in boundary)
    named = [flow.numbers.get(name) if name is not None else None for name in names]
    return Side(
        frozenset(number for number in named if number is not None),
        tuple(tensor.info for tensor, number in zip(boundary, named, strict=True) if number is None),
    )


def may_be(info: TensorInfo | None, kind: TensorType | None) -> bool:
    """Whether a tensor of this type may be the one that was recorded; what is unknown may be anything."""
    if info is None or kind is None:
        return True
    element = ELEMENTS.get(info.dtype)
    if element is not None and element != kind.element:
        return False
    if kind.shape is None:
        return True
    if len(kind.shape) != len(info.shape):
        return False
    pairs = zip(info.shape, kind.shape, strict=True)
    return all(not isinstance(one, int) or other is None or one == other for one, other in pairs)


# torch's names of element types, as documents have them.
ELEMENTS = {
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "float32": onnx.TensorProto.FLOAT,
    "float64": onnx.TensorProto.DOUBLE,
    "uint8": onnx.TensorProto.UINT8,
    "int8": onnx.TensorProto.INT8,
    "int16": onnx.TensorProto.INT16,
    "int32": onnx.TensorProto.INT32,
    "int64": onnx.TensorProto.INT64,
    "bool": onnx.TensorProto.BOOL,
    "complex64": onnx.TensorProto.COMPLEX64,
    "complex128": onnx.TensorProto.COMPLEX128,
}
