"""Which calls computed or passed each tensor of a graph, by the values of an eager PyTorch run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils.weak import WeakIdKeyDictionary

from modelexport.analysis.contamination import ROOT, BoundaryTensors, CallIndex, Conflict, NodeOwners
from modelexport.graph import NO_NODE, FlowGraph
from modelexport.hierarchy import TensorInfo
from modelexport.torch_support.private import version_of
from modelexport.verification.forward_recording import RecordedCall
from modelexport.verification.order_statistics import OrderStatistics, OrderStatisticsIndex, order_statistics_of
from modelexport.verification.pytorch_run import array_of

# How many tensors are searched for one that a node copies.
_MAX_SEARCHED = 32
_UNKNOWN_CALL = -1


class OperatorOutputs:
    """The outputs of operators in an eager run, as order statistics with the id of the call that ran the operator.

    Attributes:
        computed: Outputs with new values.
        copied: Outputs with the elements of an input, in any layout.
    """

    def __init__(self) -> None:
        self.computed: list[tuple[OrderStatistics, str]] = []
        self.copied: list[tuple[OrderStatistics, str]] = []
        # The order statistics of living tensors, each with the version of the tensor that they describe.
        self._known: Any = WeakIdKeyDictionary()

    def __call__(self, tensor: torch.Tensor, call: str, inputs: list[torch.Tensor]) -> None:
        statistics = self._statistics(tensor)
        if statistics is None or not statistics.is_distinctive:
            return
        sources = (self._statistics(other) for other in inputs if other.numel() == statistics.size)
        is_copy = any(source is not None and source.is_copy(statistics) for source in sources)
        (self.copied if is_copy else self.computed).append((statistics, call))

    def _statistics(self, tensor: torch.Tensor) -> OrderStatistics | None:
        version, statistics = self._known.get(tensor, (None, None))
        current = version_of(tensor)
        if version != current:
            statistics = _statistics(tensor)
            self._known[tensor] = (current, statistics)
        return cast("OrderStatistics | None", statistics)


class ValueEvidence:
    """Matches the tensors of a graph with the values that calls computed, received and returned in an eager run.

    Args:
        calls: The calls of the document.
        outputs: The outputs of operators in the eager run.
        tensors: The values of the graph's tensors in onnxruntime.
        owners: The recorded owners, to identify calls in branches and loops.
        constants: The values of initializers that belong to no module.

    Attributes:
        inputs: The inputs of each call, as tensors of the graph.
        outputs: The outputs of each call.
    """

    def __init__(
        self,
        flow: FlowGraph,
        calls: CallIndex,
        outputs: OperatorOutputs,
        run: Mapping[str, RecordedCall],
        tensors: Mapping[int, OrderStatistics],
        owners: NodeOwners,
        constants: Mapping[int, OrderStatistics],
    ) -> None:
        self.flow = flow
        self._constants = constants
        self._calls = calls
        self._tensors = tensors
        self._distinctive = {tensor for tensor, statistics in tensors.items() if statistics.is_distinctive}
        self._numbers = _call_numbers(run, calls, self._count_computed(outputs, owners))
        self._computed_by = self._calls_by_tensor(outputs.computed)
        self._copied_by = self._calls_by_tensor(outputs.copied)
        by_value = OrderStatisticsIndex((tensors[tensor], tensor) for tensor in self._distinctive)
        # The calls that received or returned each tensor, and their callers.
        self._passed_by: dict[int, frozenset[int]] = {}
        self._copies: dict[int, bool] = {}
        self.inputs: dict[int, BoundaryTensors] = {}
        self.outputs: dict[int, BoundaryTensors] = {}
        for call in run.values():
            numbers = self._numbers[call.id]
            # A call of the run that may be one of several calls of the document shows the boundary of none.
            if len(numbers) == 1 and numbers[0] not in (_UNKNOWN_CALL, ROOT):
                number = numbers[0]
                self.inputs[number] = self._boundary(number, call.inputs, calls.inputs[number], by_value)
                self.outputs[number] = self._boundary(number, call.outputs, calls.outputs[number], by_value)

    def _count_computed(self, outputs: OperatorOutputs, owners: NodeOwners) -> Callable[[str, int], int]:
        """Returns how many outputs of the nodes of a call of the document a call of the run computed."""
        by_call: dict[str, list[tuple[OrderStatistics, int]]] = {}
        for statistics, call in outputs.computed:
            by_call.setdefault(call, []).append((statistics, 0))

        def count(call: str, number: int) -> int:
            index = OrderStatisticsIndex(by_call.get(call, []))
            produced = (tensor for node in owners.recorded_nodes(number) for tensor in self.flow.node_outputs[node])
            return sum(bool(index.find(self._tensors[tensor])) for tensor in produced if tensor in self._distinctive)

        return count

    def _calls_by_tensor(self, outputs: list[tuple[OrderStatistics, str]]) -> dict[int, frozenset[int]]:
        """The calls that have an output with the values of each distinctive tensor."""
        index = OrderStatisticsIndex(
            (statistics, n) for statistics, call in outputs for n in self._numbers.get(call, (_UNKNOWN_CALL,))
        )
        found = {tensor: frozenset(n for _, n in index.find(self._tensors[tensor])) for tensor in self._distinctive}
        return {tensor: frozenset() if _UNKNOWN_CALL in by else by for tensor, by in found.items()}

    def _boundary(
        self,
        call: int,
        observed: Mapping[str, torch.Tensor],
        recorded: BoundaryTensors,
        by_value: OrderStatisticsIndex,
    ) -> BoundaryTensors:
        """The inputs or outputs of a call: the recorded ones, and the tensors of the graph with the observed values."""
        complete = bool(recorded.tensors) and not recorded.unnamed
        found = set(recorded.tensors)
        unnamed: list[TensorInfo | None] = []
        for tensor in observed.values():
            statistics = _statistics(tensor)
            if statistics is None:
                continue
            same = by_value.find(statistics) if statistics.is_distinctive else []
            for _, number in same:
                # The caller passed or received it too.
                passed = {call, self._calls.parents[call]}
                self._passed_by[number] = self._passed_by.get(number, frozenset()) | passed
            if complete:
                continue
            # The graph may have it transposed, if it is transposed back outside, beside a tensor that equals it.
            found.update(number for _, number in same)
            if not any(other.same_tensor(statistics) for other, _ in same):
                # Its values are not distinctive, or it is not in the graph: any tensor of its type may be it.
                unnamed.append(TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        if complete:
            # A tensor recorded by name needs no match by value, which could add other tensors of equal values.
            return recorded
        # Recorded tensors that this run did not show may still be passed on other inputs, such as an optional mask.
        missing = max(len(recorded.tensors) + len(recorded.unnamed) - len(observed), 0)
        return BoundaryTensors(frozenset(found), (*unnamed, *recorded.unnamed[:missing]))

    def conflicts(self, node: int, owners: NodeOwners) -> Iterator[Conflict]:
        """Outputs that only other calls than the owner computed."""
        for tensor in self.flow.node_outputs[node]:
            possible = self._possible_owners(node, tensor)
            owned = owners.calls_of(node) if owners.is_common_caller[node] else (owners.owner(node),)
            if possible and possible.isdisjoint(owned):
                names = ", ".join(sorted(self._calls.ids[call] or "(root)" for call in self._computed_by[tensor]))
                name = self.flow.tensor_names[tensor]
                yield Conflict((node,), f"the values of {name!r} were computed by {names}")

    def _possible_owners(self, node: int, tensor: int) -> frozenset[int]:
        """The calls that may own a node by the values of its output; none if no call computed them."""
        computed = self._computed_by.get(tensor, frozenset())
        if not computed:
            return computed
        if self._is_copy(node, tensor):
            # The node only moves elements; eager PyTorch need not have run an operator for that.
            return computed | self._copied_by[tensor] | self._passed_by.get(tensor, frozenset())
        sources = (self._tensors.get(source) for source in self.flow.node_inputs[node])
        if any(source is not None and source.is_rounded_copy(self._tensors[tensor]) for source in sources):
            # A factor may be 1 in eager PyTorch, which then copies the elements, and nearly 1 in onnxruntime.
            return computed | self._copied_by[tensor]
        return computed

    def _is_copy(self, node: int, tensor: int) -> bool:
        """Whether a tensor upstream of the node has the elements of its output, in any layout."""
        if tensor not in self._copies:
            self._copies[tensor] = self._has_equal_source(node, tensor)
        return self._copies[tensor]

    def _has_equal_source(self, node: int, tensor: int) -> bool:
        wanted = self._tensors[tensor]
        waiting, searched = self._inputs_with_total_size(node), set()
        while waiting:
            source, total = waiting.pop()
            if source in searched:
                continue
            searched.add(source)
            statistics = self._tensors.get(source) or self._constants.get(source)
            if statistics is not None and statistics.is_copy(wanted):
                return True
            producer = self.flow.producers[source]
            is_large_enough = statistics is None or max(statistics.size, total) >= wanted.size
            if producer != NO_NODE and len(searched) < _MAX_SEARCHED and is_large_enough:
                waiting.extend(self._inputs_with_total_size(producer))
        return False

    def _inputs_with_total_size(self, node: int) -> list[tuple[int, int]]:
        """The inputs of a node, each with the total size of all: the node may concatenate them."""
        inputs = self.flow.node_inputs[node]
        found = (self._tensors.get(source) for source in inputs)
        total = sum(statistics.size for statistics in found if statistics is not None)
        return [(source, total) for source in inputs]

    def computed_by(self, node: int) -> Sequence[int]:
        """The calls that computed the outputs of a node."""
        return [call for tensor in self.flow.node_outputs[node] for call in sorted(self._computed_by.get(tensor, ()))]

    def candidates(self, node: int) -> Iterable[int]:
        """The calls that computed the outputs of a node, or passed them if it only moves elements."""
        return [call for tensor in self.flow.node_outputs[node] for call in sorted(self._possible_owners(node, tensor))]


def _statistics(tensor: torch.Tensor) -> OrderStatistics | None:
    try:
        return order_statistics_of(array_of(tensor), tensor.element_size())
    except (RuntimeError, TypeError, NotImplementedError):
        # A tensor without content (a functional or fake one), or of a type that numpy does not have.
        return None


def _call_numbers(
    run: Mapping[str, RecordedCall], calls: CallIndex, count_computed: Callable[[str, int], int]
) -> dict[str, tuple[int, ...]]:
    """For each call of the run the calls of the document that it may be.

    Exporters number the calls in branches and loops separately, each in its own way. There only the module is certain;
    of its calls the one is chosen whose nodes have most outputs computed by the call of the run.
    """
    by_path: dict[str, list[int]] = {}
    for number, record in enumerate(calls.records):
        by_path.setdefault(record.path, []).append(number)
    found: dict[str, tuple[int, ...]] = {}
    for path in {call.path for call in run.values() if call.in_control_flow}:
        ids, numbers = [call.id for call in run.values() if call.path == path], by_path.get(path, [])
        found.update(dict.fromkeys(ids, tuple(numbers)))
        if len(ids) == len(numbers) > 1:
            pairs = [(i, n) for i in range(len(ids)) for n in range(len(ids))]
            scores = {(i, n): count_computed(ids[i], numbers[n]) for i, n in pairs}
            left = sorted((pair for pair in scores if scores[pair]), key=lambda p: (-scores[p], abs(p[0] - p[1]), p))
            while left:
                i, n = left[0]
                found[ids[i]] = (numbers[n],)
                left = [pair for pair in left if pair[0] != i and pair[1] != n]
    for call in run.values():
        if call.id not in found:
            found[call.id] = (calls.numbers[call.id],) if call.id in calls.numbers else ()
    return {call: numbers or (_UNKNOWN_CALL,) for call, numbers in found.items()}
