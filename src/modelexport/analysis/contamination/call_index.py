"""The module calls of a document by number: their callers, boundaries and weights, and the calls that own each node."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from modelexport.graph import ELEMENT_TYPES, FlowGraph, TensorType
from modelexport.hierarchy import BoundaryTensor, CallRecord, HierarchyDocument, Kind, ModuleRecord, TensorInfo

ROOT = 0
# The name of the output of a call whose result is one tensor.
SINGLE_RESULT = "output"


@dataclasses.dataclass(frozen=True, slots=True)
class BoundaryTensors:
    """The inputs or the outputs of a call: those in the graph, and the types of the others, where known."""

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
        no_root = CallRecord(id="", path="", index=0, tag="/")
        root = next((call for call in document.calls if call.parent is None), no_root)
        self.records = records = [root, *(call for call in document.calls if call is not root)]
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
        # Of a call without a recorded boundary, such as one in a loop, neither is known.
        self.takes_numbers = [
            known and _has_other_argument(required.get(record.path, ()), record.inputs)
            for record, known in zip(records, self.has_boundary, strict=True)
        ]
        self.returns_numbers = [
            known and all(output.name != SINGLE_RESULT for output in record.outputs)
            for record, known in zip(records, self.has_boundary, strict=True)
        ]
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


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict between the owners of nodes and other evidence: one of the nodes has a wrong owner."""

    nodes: tuple[int, ...]
    reason: str


class NodeOwners:
    """The owner and the contributors of each node, as call numbers.

    Attributes:
        contributors: For each node the other calls whose work it does.
        is_shared: For each node whether it does the work of several calls (fused or merged).
        is_inferred: For each node whether its owner was inferred from data flow.
        is_common_caller: For each node whether its owner was inferred as a common caller of the contributors.
    """

    def __init__(self, document: HierarchyDocument, flow: FlowGraph, calls: CallIndex) -> None:
        records = {record.id: record for record in document.nodes}
        self._recorded: list[int] = []
        self._replaced: dict[int, int] = {}
        self.contributors: list[tuple[int, ...]] = []
        self.is_shared: list[bool] = []
        self.is_inferred: list[bool] = []
        self.is_common_caller: list[bool] = []
        for node_id in flow.node_ids:
            record = records.get(node_id)
            numbers = calls.numbers
            self._recorded.append(numbers.get(record.module, ROOT) if record is not None else ROOT)
            others = record.contributors if record is not None else ()
            kind = record.kind if record is not None else Kind.INFERRED
            self.is_shared.append(kind in (Kind.FUSED, Kind.MERGED))
            self.is_inferred.append(kind == Kind.INFERRED)
            self.is_common_caller.append(kind == Kind.INFERRED and bool(others))
            self.contributors.append(tuple(numbers[other] for other in others if other in numbers))
        self._nodes: dict[int, list[int]] = {}
        for node, owner in enumerate(self._recorded):
            self._nodes.setdefault(owner, []).append(node)

    def with_owner(self, node: int, owner: int) -> NodeOwners:
        """The same owners, except for one node. Its contributors and `recorded_nodes` stay."""
        other = copy.copy(self)
        other._replaced = {**self._replaced, node: owner}
        return other

    def owner(self, node: int) -> int:
        """The owner of a node."""
        return self._replaced.get(node, self._recorded[node])

    def calls_of(self, node: int) -> tuple[int, ...]:
        """The owner of a node, then its contributors."""
        return (self._replaced.get(node, self._recorded[node]), *self.contributors[node])

    def recorded_nodes(self, call: int) -> list[int]:
        """The nodes that the document records as owned by a call."""
        return self._nodes.get(call, [])


def modules_by_weight(flow: FlowGraph, modules: Sequence[ModuleRecord]) -> dict[int, tuple[str, ...]]:
    """The paths of the modules that have each recorded weight as parameter or buffer, tied parameters included."""
    found: dict[str, list[str]] = {}
    tied: dict[str, str] = {}
    for module in modules:
        for name in (*module.parameters, *module.buffers):
            for path in (module.path, *module.aliases):
                found.setdefault(f"{path}.{name}" if path else name, []).append(module.path)
        for name, other in module.tied_parameters.items():
            tied[f"{module.path}.{name}" if module.path else name] = other
    for name, other in tied.items():
        together = list(dict.fromkeys([*found.get(name, []), *found.get(other, [])]))
        found[name] = found[other] = together
    names = flow.tensor_names
    return {tensor: tuple(found[names[tensor]]) for tensor in flow.initializers if names[tensor] in found}


def modules_with_missing_weights(flow: FlowGraph, modules: Sequence[ModuleRecord]) -> dict[TensorType, set[str]]:
    """The paths of the modules with a weight whose name is not in the graph, by the type of that weight."""
    found: dict[TensorType, set[str]] = {}
    kept = {flow.tensor_names[tensor] for tensor in flow.initializers}
    for module in modules:
        for name, info in (*module.parameters.items(), *module.buffers.items()):
            names = (f"{path}.{name}" if path else name for path in (module.path, *module.aliases))
            element = ELEMENT_TYPES.get(info.dtype)
            if element is not None and kept.isdisjoint(names):
                shape = tuple(axis if isinstance(axis, int) else None for axis in info.shape)
                found.setdefault(TensorType(element, shape), set()).add(module.path)
    return found
