"""What one eager pass did, as a graph of values: the operators by the calls that ran them, what they read and made."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from modelexport.graph import Fingerprint
from modelexport.hierarchy import ROOT_CALL, CallId, TensorInfo
from modelexport.ownership import VisitBudget, region


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operator that ran: the call it ran in, and the numbers of the values it read and made.

    `bodies` are the functions that it was given, where it was given some: control flow.
    """

    call: CallId
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: tuple[Body, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """A branch or loop body as it ran, the last time in a loop: what it was given, did and returned."""

    given: tuple[int, ...]
    operations: tuple[Operation, ...]
    results: tuple[int, ...]

    def all_operations(self) -> Iterator[Operation]:
        """Its operators, and those in their bodies."""
        for operation in self.operations:
            yield operation
            for body in operation.bodies:
                yield from body.all_operations()


@dataclasses.dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor that entered or left a call: its name there, its value's number and what it looks like."""

    name: str
    value: int
    info: TensorInfo


@dataclasses.dataclass(slots=True)
class SeenCall:
    """A call as the hooks saw it."""

    id: CallId
    parent: CallId | None
    inputs: tuple[SeenTensor, ...] = ()
    outputs: tuple[SeenTensor, ...] = ()


@dataclasses.dataclass
class EagerRun:
    """What one forward pass did.

    Attributes:
        fingerprints: The values by number: for each its fingerprint, where it has one.
        operations: The operators in the order they ran. A call that returned what it was given counts as one too.
        calls: The module calls in the order they began.
        weights: The numbers of the parameters and buffers that were read, by name.
        mean_bytes: The size of a result, on average.
    """

    fingerprints: list[Fingerprint | None] = dataclasses.field(default_factory=list)
    operations: list[Operation] = dataclasses.field(default_factory=list)
    calls: dict[CallId, SeenCall] = dataclasses.field(default_factory=lambda: {ROOT_CALL: SeenCall(ROOT_CALL, None)})
    weights: dict[str, int] = dataclasses.field(default_factory=dict)
    mean_bytes: int = 0


class EagerGraph:
    """An index over an eager run: who makes and reads each value, and which operators only pass one on.

    Args:
        run: The run.
        dynamic: The values that need an input of the model, as far as none of the operators makes them; None for those
            that the root was given.
    """

    def __init__(self, run: EagerRun, dynamic: Iterable[int] | None = None) -> None:
        self.run = run
        self._budget = VisitBudget.for_graph(len(run.operations))
        self.makers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        self.passing: set[int] = set()
        for number, operation in enumerate(run.operations):
            for value in operation.outputs:
                self.makers.setdefault(value, []).append(number)
            for value in operation.inputs:
                self.readers.setdefault(value, []).append(number)
            pairs = itertools.product(operation.inputs, operation.outputs)
            if any(one == other or self.is_moved(one, other) for one, other in pairs):
                self.passing.add(number)
        needing = set(dynamic) if dynamic is not None else {tensor.value for tensor in run.calls[ROOT_CALL].inputs}
        for operation in run.operations:
            if not needing.isdisjoint(operation.inputs):
                needing.update(operation.outputs)
                for body in operation.bodies:
                    needing.update(*(inner.outputs for inner in body.all_operations()))
        # The values that need no input of the model: weights, and what is made of them and of nothing.
        self.constant = set(range(len(run.fingerprints))) - needing

    def is_moved(self, one: int, other: int) -> bool:
        """Whether one value is the other, laid out anew or not."""
        first, second = self.run.fingerprints[one], self.run.fingerprints[other]
        return first is not None and second is not None and first.is_copy(second)

    def call(self, operation: int) -> CallId:
        """The call that ran the operator."""
        return self.run.operations[operation].call

    def spread(self, values: Iterable[int]) -> set[int]:
        """The values, and the same ones wherever operators passed them on."""
        found = set(values)
        waiting = list(found)
        while waiting:
            value = waiting.pop()
            for number in self.readers.get(value, ()):
                if number in self.passing:
                    for other in self.run.operations[number].outputs:
                        if other not in found and self.is_moved(value, other):
                            found.add(other)
                            waiting.append(other)
        return found

    def constants_behind(self, starts: Iterable[int]) -> list[int]:
        """The operators that made, of weights or of nothing, what the starting ones read."""
        found: dict[int, None] = {}
        waiting = list(starts)
        while waiting:
            for value in self.constant.intersection(self.run.operations[waiting.pop()].inputs):
                for maker in self.makers.get(value, ()):
                    if maker not in found:
                        found[maker] = None
                        waiting.append(maker)
        return list(found)

    def region(self, starts: Iterable[int], stops: set[int], survivors: set[int]) -> list[int]:
        """The starting operators, and all on paths back from them that end at one of the stops.

        Paths that end at another value which the ONNX graph has too were cut by the exporter.
        """
        operations = self.run.operations

        def behind(number: int, value: int) -> list[int] | tuple[int, ...] | None:
            if value in stops:
                return None
            return () if value in survivors else self.makers.get(value, ())

        return region(starts, lambda number: operations[number].inputs, behind, self._budget)
