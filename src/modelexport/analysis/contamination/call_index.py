"""The module calls of a document by number: their callers, and the tensors at their boundaries."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

from modelexport.graph import ELEMENT_TYPES, FlowGraph, TensorType
from modelexport.hierarchy import BoundaryTensor, CallRecord, HierarchyDocument, TensorInfo

ROOT = 0
# The name of the output of a call whose result is one tensor.
SINGLE_RESULT = "output"


@dataclasses.dataclass(frozen=True, slots=True)
class BoundaryTensors:
    """The inputs or the outputs of a call.

    Attributes:
        tensors: Those that are tensors of the graph.
        unnamed: The types of the others; None for an unknown type.
    """

    tensors: frozenset[int]
    unnamed: tuple[TensorInfo | None, ...]

    def may_contain(self, tensor: int, tensor_type: TensorType | None) -> bool:
        """Whether the tensor is one of them, or has the type of one that is not named in the graph."""
        return tensor in self.tensors or any(types_compatible(info, tensor_type) for info in self.unnamed)


class CallIndex:
    """The calls of a document, in its order, except that the root call comes first: its number is `ROOT`.

    Attributes:
        records: The calls.
        ids: Their ids.
        numbers: Their numbers by id.
        parents: The caller of each call; the root call's is itself.
        inputs: The inputs of each call.
        outputs: The outputs of each call.
        recorded_outputs: The outputs of each call in the document.
        has_boundary: For each call whether any input or output is known.
        takes_numbers: For each call whether a required argument has no tensor, and so may be a Python number.
        returns_numbers: For each call whether its result may contain Python numbers: it is not a single tensor.
    """

    def __init__(self, document: HierarchyDocument, flow: FlowGraph) -> None:
        records = _root_first(document.calls)
        self.records = records
        self.ids = [record.id for record in records]
        self.numbers = {call_id: number for number, call_id in enumerate(self.ids)}
        self.parents = [self.numbers.get(record.parent, ROOT) if record.parent else ROOT for record in records]
        self.inputs = [_boundary_tensors(record.inputs, flow) for record in records]
        self.outputs = [_boundary_tensors(record.outputs, flow) for record in records]
        self.recorded_outputs = self.outputs
        self.has_boundary = [bool(record.inputs or record.outputs) for record in records]
        required = {
            module.path: [argument.name for argument in module.forward_arguments if argument.required]
            for module in document.modules
        }
        self.takes_numbers = [_has_other_argument(required.get(record.path, ()), record.inputs) for record in records]
        self.returns_numbers = [all(output.name != SINGLE_RESULT for output in record.outputs) for record in records]
        self._depths = _depths(self.parents)

    def with_boundaries(
        self, inputs: Mapping[int, BoundaryTensors], outputs: Mapping[int, BoundaryTensors]
    ) -> CallIndex:
        """The same calls, with these inputs and outputs in place of the recorded ones."""
        other = copy.copy(self)
        other.inputs = [inputs.get(call, recorded) for call, recorded in enumerate(self.inputs)]
        other.outputs = [outputs.get(call, recorded) for call, recorded in enumerate(self.outputs)]
        other.has_boundary = [
            known or call in inputs or call in outputs for call, known in enumerate(self.has_boundary)
        ]
        return other

    def __len__(self) -> int:
        return len(self.ids)

    def with_callers(self, call: int) -> Iterator[int]:
        """The call and its callers, innermost first, without the root."""
        while call != ROOT and self._depths[call]:
            yield call
            call = self.parents[call]

    def encloses(self, outer: int, inner: int) -> bool:
        """Whether `inner` is `outer` or ran inside it."""
        if outer == ROOT:
            return True
        while self._depths[inner] > self._depths[outer]:
            inner = self.parents[inner]
        return inner == outer

    def common_caller(self, calls: Iterable[int]) -> int:
        """The innermost call that encloses all of these."""
        remaining = iter(calls)
        outer = next(remaining, ROOT)
        for call in remaining:
            while not self.encloses(outer, call):
                outer = self.parents[outer]
        return outer


def _root_first(calls: tuple[CallRecord, ...]) -> list[CallRecord]:
    roots = [call for call in calls if call.parent is None]
    root = roots[0] if roots else CallRecord(id="", path="", index=0, tag="/")
    return [root, *(call for call in calls if call is not root)]


def _depths(parents: list[int]) -> list[int]:
    """The distance of each call from the root. In a damaged document calls may call each other: one of them then
    gets the root as caller."""
    depths = [0] * len(parents)
    for start in range(1, len(parents)):
        path, current, seen = [], start, set()
        while current != ROOT and not depths[current]:
            if current in seen:
                parents[current] = ROOT
                break
            seen.add(current)
            path.append(current)
            current = parents[current]
        for number in reversed(path):
            depths[number] = depths[parents[number]] + 1
    return depths


def _boundary_tensors(boundary: tuple[BoundaryTensor, ...], flow: FlowGraph) -> BoundaryTensors:
    names = (tensor.tensor if tensor.tensor is not None else tensor.stand_in for tensor in boundary)
    named = [flow.tensor_numbers.get(name) if name is not None else None for name in names]
    return BoundaryTensors(
        frozenset(number for number in named if number is not None),
        tuple(tensor.info for tensor, number in zip(boundary, named, strict=True) if number is None),
    )


def _has_other_argument(names: Iterable[str], inputs: tuple[BoundaryTensor, ...]) -> bool:
    """Whether an argument of this list has no tensor among the inputs."""
    with_tensor = {tensor.name.partition(".")[0] for tensor in inputs}
    return any(name not in with_tensor for name in names)


def same_elements(info: TensorInfo, tensor_type: TensorType | None) -> bool:
    """Whether a tensor of this type may have the elements of the recorded one, transposed or reshaped.

    Dynamic axes are left out: a transpose or reshape that keeps them keeps the number of the other elements. Some
    exporters record the sizes of the example inputs in their place.
    """
    if tensor_type is None or tensor_type.shape is None or ELEMENT_TYPES.get(info.dtype) != tensor_type.element:
        return False
    recorded = math.prod(axis for axis in info.shape if isinstance(axis, int))
    known = math.prod(axis for axis in tensor_type.shape if axis is not None)
    if None in tensor_type.shape and all(isinstance(axis, int) for axis in info.shape):
        return known != 0 and recorded % known == 0
    return recorded == known


def types_compatible(info: TensorInfo | None, tensor_type: TensorType | None) -> bool:
    """Whether a tensor of this type may be the recorded one. An unknown type or axis is compatible with any."""
    if info is None or tensor_type is None:
        return True
    element = ELEMENT_TYPES.get(info.dtype)
    if element is not None and element != tensor_type.element:
        return False
    if tensor_type.shape is None:
        return True
    if len(tensor_type.shape) != len(info.shape):
        return False
    pairs = zip(info.shape, tensor_type.shape, strict=True)
    return all(not isinstance(recorded, int) or size is None or recorded == size for recorded, size in pairs)
