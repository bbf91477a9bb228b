"""Track values of the traced TorchScript graph to the ONNX graph: the boundary tensors of module calls.

The tracer knows the graph value of each tensor. The exporter then rewrites the graph in place, translates it to ONNX
and copies it twice. Only the boundary values are tracked, as the exporter's own objects: through a copy by a temporary
name, and through the translation by the exporter's own table. A value that a pass removed is replaced by the value that
its consumers now consume, or by one that the same operators compute from the same values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from modelexport.capture.torchscript.jit_graph import (
    block_inputs,
    blocks_of,
    constant_key,
    inputs_of,
    operation_of,
    outputs_of,
    values_of,
)
from modelexport.errors import UnusableOptionError
from modelexport.torch_support.private_jit import (
    JitPass,
    is_tensor,
    pass_through,
    traced_value,
    translation_seen,
)


class ConstantAddedError(UnusableOptionError):
    """Looking up a tensor changed the graph: the tracer did not know the tensor and added it as a constant."""

    def __init__(self) -> None:
        super().__init__("looking up the inputs and outputs of module calls in the trace would change the graph.", "")


def traced_values(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return the values of these tensors in the traced graph; None for a tensor that the tracer cannot look up.

    Raises:
        ConstantAddedError: The tracer did not know one of them and added it as a constant. The trace is unusable: the
            constant comes earlier in the graph than it would without the look-up.
    """
    # By index: the tracer names a value after a local variable that is the tensor, in any frame.
    values = [traced_value(tensors, index) for index in range(len(tensors))]
    if any(value is not None and value.toIValue() is not None and not value.uses() for value in values):
        raise ConstantAddedError
    return values


class _Consumer(NamedTuple):
    """A node that consumed a value before a pass: its input index, operator and number of inputs."""

    node: Any
    input_index: int
    kind: str
    size: int

    def consumed_value(self) -> Any:
        """Return the value that the node consumes now at that index; None if the pass removed or changed the node."""
        try:
            same = self.node.kind() == self.kind and self.node.inputsSize() == self.size
        except RuntimeError:
            return None
        return self.node.inputsAt(self.input_index) if same else None


class ValueTracker:
    """Tracks values of the traced graph to the graph that is folded and written."""

    def __init__(self) -> None:
        # The values by their number in the trace; None for a value that no longer exists.
        self._values: dict[int, Any] = {}
        self._inputs: dict[int, int] = {}
        self._results: list[int | None] = []
        self._names: _Names | None = None
        self._consumers: dict[int, list[_Consumer]] = {}
        self._snapshot: _Snapshot | None = None
        self._numbers: dict[int, int] = {}

    def begin_trace(self) -> None:
        """Start with a new trace: forget the values of the previous one."""
        self._values.clear()

    def track(self, values: Sequence[Any]) -> list[int | None]:
        """Track these values of the traced graph; return their numbers for `find`."""
        numbers = [None if value is None else int(value.unique()) for value in values]
        for number, value in zip(numbers, values, strict=True):
            if number is not None:
                self._values.setdefault(number, value)
        return numbers

    def end_trace(self, state: Any, results: Sequence[int | None]) -> None:
        """Prepare for the copy of the graph that the exporter creates at the end of the trace of these results."""
        positions = {value.unique(): index for index, value in enumerate(block_inputs(state.graph()))}
        self._inputs = {number: positions[number] for number in self._values if number in positions}
        self._results = list(results)
        # Inputs and outputs of the graph are found by position: the tracer may still name them, and the file has these
        # names.
        by_position = {*self._inputs, *self._results}
        self._names = _Names({number: value for number, value in self._values.items() if number not in by_position})

    def find(self, number: int | None) -> int | None:
        """Return the number of a tracked value in the final graph; None if it no longer exists."""
        return self._numbers.get(number) if number is not None else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Track the values through the exporter's passes within the context."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(pass_through(JitPass.INLINE, self._find_in_copy))
            stack.enter_context(pass_through(JitPass.CSE, self._merge))
            stack.enter_context(pass_through(JitPass.TO_ONNX, self._translate))
            stack.enter_context(pass_through(JitPass.CANONICALIZE, self._renumber))
            yield

    def _find_in_copy(self, run_pass: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        if self._names is not None:
            found = self._names.find_in(graph)
            inputs, outputs = block_inputs(graph), _tensors(graph.outputs())
            found.update({number: inputs[index] for number, index in self._inputs.items() if index < len(inputs)})
            if len(outputs) == len(self._results):
                found.update({n: value for n, value in zip(self._results, outputs, strict=True) if n is not None})
            self._names = None
            self._values = {number: found.get(number) for number in self._values}
            self._remember()
        return run_pass(graph, *rest)

    def _merge(self, run_pass: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        """Track the values through the pass that merges equal nodes; later passes remove their consumers."""
        self._settle(graph)
        self._remember(graph)
        changed = run_pass(graph, *rest)
        if changed is not False:
            self._settle(graph)
            self._remember(graph)
        return changed

    def _translate(self, run_pass: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        self._settle(graph)
        inputs = {value: index for index, value in enumerate(block_inputs(graph))}
        table: dict[Any, Any] = {}

        def keep_table(current: dict[Any, Any]) -> None:
            nonlocal table
            table = current

        with translation_seen(keep_table):
            result = run_pass(graph, *rest)
        new_inputs = block_inputs(result)
        for number, value in self._values.items():
            new = table.get(value)
            if new is None and inputs.get(value, len(new_inputs)) < len(new_inputs):
                new = new_inputs[inputs[value]]
            # The exporter has removed values without consumers.
            self._values[number] = new if _exists(new) else None
        self._remember()
        return result

    def _renumber(self, run_pass: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        self._settle(graph)
        names = _Names(self._values)
        result = run_pass(graph, *rest)
        # Later passes modify the graph in place, and values keep their numbers.
        self._numbers = {number: value.unique() for number, value in names.find_in(result).items()}
        return result

    def _remember(self, graph: Any = None) -> None:
        """Save the consumers of each value, and with `graph` a snapshot of it, to find values that a pass removes."""
        self._consumers = {
            number: [
                _Consumer(user, use.offset, user.kind(), user.inputsSize())
                for use in value.uses()
                for user in [use.user]
            ]
            for number, value in self._values.items()
            if value is not None
        }
        self._snapshot = None if graph is None else _Snapshot(graph, self._values)

    def _settle(self, graph: Any) -> None:
        """Find the replacements of values that passes removed from the graph."""
        lost = {number for number, value in self._values.items() if value is not None and not _exists(value)}
        for number in lost:
            consumed = (consumer.consumed_value() for consumer in self._consumers.get(number, ()))
            self._values[number] = next((value for value in consumed if value is not None), None)
        left = {number for number in lost if self._values[number] is None}
        if left and self._snapshot is not None:
            found = {number: self._values[number] for number in lost - left}
            self._values.update(self._snapshot.equal_values(left, graph, found))


def _exists(value: Any) -> bool:
    """Whether a value is still part of its graph."""
    if value is None:
        return False
    try:
        value.unique()
    except RuntimeError:
        return False
    return True


class _Names:
    """Names of values, by which they are found in a copy of their graph; values without one get a temporary name."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._temporary: set[str] = set()
        for number, value in values.items():
            if value is None:
                continue
            name = value.debugName()
            if name == str(value.unique()):
                # No Python variable has such a name.
                name = f"modelexport-{name}"
                value.setDebugName(name)
                self._temporary.add(name)
            self._numbers.setdefault(name, []).append(number)

    def find_in(self, graph: Any) -> dict[int, Any]:
        """Return the values in the copy, and remove the temporary names there."""
        found: dict[int, Any] = {}
        for value in (value for block in blocks_of(graph) for value in values_of(block)):
            name = value.debugName()
            if name in self._numbers:
                found.update(dict.fromkeys(self._numbers[name], value))
                if name in self._temporary:
                    value.setDebugName("")
        return found


class _Snapshot:
    """The main block of a graph before a pass, with these tracked values, by their number in the trace."""

    def __init__(self, graph: Any, values: Mapping[int, Any]) -> None:
        # The values of the copy have other numbers, and the same order.
        self.copy = graph.copy()
        self.originals = [value.unique() for value in values_of(graph)]
        self.tracked = {number: value.unique() for number, value in values.items() if value is not None}

    def equal_values(self, lost: set[int], graph: Any, found: Mapping[int, Any]) -> dict[int, Any]:
        """Return for each lost value one that the same operators compute from the same values: merged or new."""
        keys: dict[object, int] = {}
        now = {value.unique(): value for value in values_of(graph)}
        after = _value_classes(graph, keys, {})
        # Values that still exist, or that were found by their consumers, keep their class.
        now.update({self.tracked[number]: value for number, value in found.items()})
        originals = dict(zip((value.unique() for value in values_of(self.copy)), self.originals, strict=True))
        known = {
            unique: after[now[original].unique()]
            for unique, original in originals.items()
            if original in now and now[original].unique() in after
        }
        before = _value_classes(self.copy, keys, known)
        survivors: dict[int, Any] = {}
        for value in values_of(graph):
            survivors.setdefault(after[value.unique()], value)
        equal = {original: survivors.get(before[unique]) for unique, original in originals.items()}
        return {number: equal.get(self.tracked[number]) for number in lost}


def _value_classes(graph: Any, keys: dict[object, int], known: dict[int, int]) -> dict[int, int]:
    """Return for each value of the main block a class number; values computed in the same way have the same one."""
    classes: dict[int, int] = {}
    for index, value in enumerate(block_inputs(graph)):
        classes[value.unique()] = keys.setdefault(("input", index), len(keys))
    for node in graph.nodes():
        key = _node_key(node, classes)
        for index, value in enumerate(outputs_of(node)):
            unique = value.unique()
            classes[unique] = known[unique] if unique in known else keys.setdefault((key, index), len(keys))
    return classes


def _node_key(node: Any, classes: dict[int, int]) -> object:
    inputs = tuple(classes.get(value.unique(), -1) for value in inputs_of(node))
    content = node.output().toIValue() if node.outputsSize() == 1 else None
    if not inputs and content is not None:
        key = constant_key(content)
        if key is not None:
            return ("constant", key)
    if -1 in inputs or not inputs or list(node.blocks()):
        return ("unique", object())
    return (operation_of(node), inputs)


def _tensors(values: Iterable[Any]) -> list[Any]:
    """Return the tensors among the values, those inside tuples and lists included."""
    found: list[Any] = []
    pending = list(values)[::-1]
    while pending:
        value = pending.pop()
        if is_tensor(value):
            found.append(value)
        else:
            pending.extend(reversed(inputs_of(value.node())))
    return found
