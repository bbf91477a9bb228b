"""One eager forward pass as a graph of values: the operators that ran, the module call of each, inputs and outputs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from modelexport.graph import Fingerprint
from modelexport.hierarchy import ROOT_CALL, CallId, TensorInfo
from modelexport.ownership import VisitBudget, region


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operator that ran.

    Attributes:
        call: The module call that ran it.
        inputs: The numbers of the values it consumed.
        outputs: The numbers of the values it produced.
        functions: For a control-flow operator, the runs of its functions (branches, loop condition, loop body).
    """

    call: CallId
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    functions: tuple[FunctionRun, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionRun:
    """One run of a branch or of a loop's function; for a loop the last iteration."""

    inputs: tuple[int, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]

    def all_operations(self) -> Iterator[Operation]:
        """Its operators, and those in the functions of its control-flow operators."""
        for operation in self.operations:
            yield operation
            for function in operation.functions:
                yield from function.all_operations()


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedTensor:
    """An input or output of a module call: its name there, the number of its value, its shape and type."""

    name: str
    value: int
    info: TensorInfo


@dataclasses.dataclass(slots=True)
class RecordedCall:
    """A module call as its hooks recorded it."""

    id: CallId
    parent: CallId | None
    inputs: tuple[RecordedTensor, ...] = ()
    outputs: tuple[RecordedTensor, ...] = ()


@dataclasses.dataclass
class EagerRun:
    """The record of one forward pass.

    Attributes:
        fingerprints: The fingerprint of each value by number; None for a value without one.
        operations: The operators in the order they ran. A call that returned one of its inputs counts as an operator.
        calls: The module calls in the order they began.
        weights: The numbers of the parameters and buffers that were consumed, by name.
        mean_bytes: The mean size of an operator's output.
    """

    fingerprints: list[Fingerprint | None] = dataclasses.field(default_factory=list)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    calls: dict[CallId, RecordedCall] = dataclasses.field(
        default_factory=lambda: {ROOT_CALL: RecordedCall(ROOT_CALL, None)}
    )
    weights: dict[str, int] = dataclasses.field(default_factory=dict)
    mean_bytes: int = 0


class EagerGraph:
    """An index of an eager run. Operators and values are numbers.

    `dynamic` are the values without a producer that depend on an input of the model; None for the inputs of the root.

    Attributes:
        producers: The operators that produced each value.
        consumers: The operators that consumed each value.
        copying: The operators with an output that has the elements of an input, in the same or another layout.
        constant: The values that depend on no input of the model: weights, and what is computed from them alone.
    """

    def __init__(self, run: EagerRun, dynamic: Iterable[int] | None = None) -> None:
        self.run = run
        self._budget = VisitBudget.for_graph(len(run.operations))
        self.producers: dict[int, list[int]] = {}
        self.consumers: dict[int, list[int]] = {}
        self.copying: set[int] = set()
        for number, operation in enumerate(run.operations):
            for value in operation.outputs:
                self.producers.setdefault(value, []).append(number)
            for value in operation.inputs:
                self.consumers.setdefault(value, []).append(number)
            pairs = itertools.product(operation.inputs, operation.outputs)
            if any(one == other or self.is_copy(one, other) for one, other in pairs):
                self.copying.add(number)
        depending = set(dynamic) if dynamic is not None else {tensor.value for tensor in run.calls[ROOT_CALL].inputs}
        for operation in run.operations:
            if not depending.isdisjoint(operation.inputs):
                depending.update(operation.outputs)
                for function in operation.functions:
                    depending.update(*(inner.outputs for inner in function.all_operations()))
        self.constant = set(range(len(run.fingerprints))) - depending

    def is_copy(self, one: int, other: int) -> bool:
        """Whether two values have the same elements, in the same or another layout."""
        first, second = self.run.fingerprints[one], self.run.fingerprints[other]
        return first is not None and second is not None and first.is_copy(second)

    def call(self, operation: int) -> CallId:
        """The call that ran the operator."""
        return self.run.operations[operation].call

    def with_copies(self, values: Iterable[int]) -> set[int]:
        """The values, and the copies that operators made of them."""
        found = set(values)
        waiting = list(found)
        while waiting:
            value = waiting.pop()
            for number in self.consumers.get(value, ()):
                if number in self.copying:
                    for other in self.run.operations[number].outputs:
                        if other not in found and self.is_copy(value, other):
                            found.add(other)
                            waiting.append(other)
        return found

    def constants_behind(self, starts: Iterable[int]) -> list[int]:
        """The operators that computed, from weights or nothing, the constants that the starting ones consume."""
        found: dict[int, None] = {}
        waiting = list(starts)
        while waiting:
            for value in self.constant.intersection(self.run.operations[waiting.pop()].inputs):
                for producer in self.producers.get(value, ()):
                    if producer not in found:
                        found[producer] = None
                        waiting.append(producer)
        return list(found)

    def region(self, starts: Iterable[int], stops: set[int], survivors: set[int]) -> list[int]:
        """The starting operators, and all operators on paths back from them that end at one of the stops.

        A path that ends at another value of the ONNX graph (`survivors`) does not count: the exporter removed it.
        """
        operations = self.run.operations

        def producers(number: int, value: int) -> list[int] | tuple[int, ...] | None:
            if value in stops:
                return None
            return () if value in survivors else self.producers.get(value, ())

        return region(starts, lambda number: operations[number].inputs, producers, self._budget)
