"""Which tensors of the TorchScript exporter's graph a module call was given and returned.

The tracer knows the value of its graph that holds a tensor. On the way to ONNX the exporter rewrites that graph in
place, translates it, and twice copies it. Only the values asked for are followed, each as the exporter's own object:
through a copy by a name that they have for that moment, through the translation by the exporter's own table. A value
that a rewriting removed is what its readers now read in its place, or the one that was made in the same way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from modelexport.capture.torchscript.jit_graph import blocks_of, given_to, inputs_of, outputs_of, values_of
from modelexport.errors import ExportError
from modelexport.torch_support.private_jit import (
    JitPass,
    is_block,
    is_tensor,
    pass_through,
    traced_value,
    translation_seen,
)

_SMALL = 64
# Where a printed graph defines a value.
_DEFINED = re.compile(r"%([^\s:,()]+) :")


class ConstantAddedError(ExportError):
    """To look a tensor up would have changed the graph: the tracer had not met it before."""


def traced_values(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The values that hold these tensors in the graph that is being traced; None for one that it does not know.

    Raises:
        ConstantAddedError: The tracer did not know one of them, and has entered it as a constant. The trace is spoilt:
            the constant stands earlier in the graph than it would have.
    """
    # By place: the tracer names a value after a variable of the frames that look it up, and none may be the tensor.
    return [_traced_value(tensors, place) for place in range(len(tensors))]


def _traced_value(tensors: Sequence[torch.Tensor], place: int) -> Any:
    value = traced_value(tensors, place)
    if value is None:
        return None
    if value.toIValue() is not None and not value.uses():
        raise ConstantAddedError
    return value


class _Reader(NamedTuple):
    """A node that reads a value, as it was."""

    node: Any
    place: int
    kind: str
    size: int

    def reads_now(self) -> Any:
        """What the node reads in that place now; None if the node is gone or another."""
        try:
            same = self.node.kind() == self.kind and self.node.inputsSize() == self.size
        except RuntimeError:
            return None
        return self.node.inputsAt(self.place) if same else None


class ValueTracker:
    """Follows values of the traced graph to the graph that is folded and written."""

    def __init__(self) -> None:
        # The values by the number that each had in the trace; None once nothing holds it any more.
        self._values: dict[int, Any] = {}
        self._inputs: dict[int, int] = {}
        self._results: list[int | None] = []
        self._names: _Names | None = None
        self._readers: dict[int, list[_Reader]] = {}
        self._before: _Snapshot | None = None
        self._numbers: dict[int, int] = {}

    def begin_trace(self) -> None:
        """A trace begins: what was followed belongs to another."""
        self._values.clear()

    def track(self, values: Sequence[Any]) -> list[int | None]:
        """Follow these values of the traced graph; gives the numbers to ask for them by."""
        numbers = [None if value is None else int(value.unique()) for value in values]
        for number, value in zip(numbers, values, strict=True):
            if number is not None:
                self._values.setdefault(number, value)
        return numbers

    def end_trace(self, state: Any, results: Sequence[int | None]) -> None:
        """The trace is complete; now the graph is copied.

        Args:
            state: The tracer's state.
            results: The numbers of the model's results.
        """
        places = {value.unique(): place for place, value in enumerate(given_to(state.graph()))}
        self._inputs = {number: places[number] for number in self._values if number in places}
        self._results = list(results)
        # What the graph is given and gives is found by its place; the tracer may still name it, and files show that.
        apart = {*self._inputs, *self._results}
        self._names = _Names({number: value for number, value in self._values.items() if number not in apart})

    def find(self, number: int | None) -> int | None:
        """The number that a traced value has at the end; None where nothing holds it any more."""
        return self._numbers.get(number) if number is not None else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See what the exporter does to its graph within the context."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(pass_through(JitPass.INLINE, self._at_first))
            stack.enter_context(pass_through(JitPass.CSE, self._merge))
            stack.enter_context(pass_through(JitPass.TO_ONNX, self._translate))
            stack.enter_context(pass_through(JitPass.CANONICALIZE, self._renumber))
            yield

    def _at_first(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        if self._names is not None:
            found = self._names.find_in(graph)
            inputs, outputs = given_to(graph), _tensors(graph.outputs())
            found.update({number: inputs[place] for number, place in self._inputs.items() if place < len(inputs)})
            if len(outputs) == len(self._results):
                found.update({n: value for n, value in zip(self._results, outputs, strict=True) if n is not None})
            self._names = None
            self._values = {number: found.get(number) for number in self._values}
            self._remember()
        return original(graph, *rest)

    def _merge(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        """Equal nodes become one: looked at by itself, because later rewritings take their readers away."""
        self._settle(graph)
        self._remember(graph)
        changed = original(graph, *rest)
        if changed is not False:
            self._settle(graph)
            self._remember(graph)
        return changed

    def _translate(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        self._settle(graph)
        inputs = {value: place for place, value in enumerate(given_to(graph))}
        table: dict[Any, Any] = {}

        def see_table(seen: dict[Any, Any]) -> None:
            nonlocal table
            table = seen

        with translation_seen(see_table):
            result = original(graph, *rest)
        placed = given_to(result)
        for number, value in self._values.items():
            new = table.get(value)
            if new is None and inputs.get(value, len(placed)) < len(placed):
                new = placed[inputs[value]]
            # A value that nothing reads is gone by now.
            self._values[number] = new if _is_there(new) else None
        self._remember()
        return result

    def _renumber(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        self._settle(graph)
        names = _Names(self._values)
        result = original(graph, *rest)
        # From here on the graph is changed in place alone, and each value keeps its number.
        self._numbers = {number: value.unique() for number, value in names.find_in(result).items()}
        return result

    def _remember(self, graph: Any = None) -> None:
        """Keep who reads each value, for when it is gone; and with a graph, what each was made of."""
        self._readers = {
            number: [
                _Reader(user, use.offset, user.kind(), user.inputsSize()) for use in value.uses() for user in [use.user]
            ]
            for number, value in self._values.items()
            if value is not None
        }
        self._before = None if graph is None else _Snapshot.take(graph, self._values)

    def _settle(self, graph: Any) -> None:
        """Find what became of the values that the graph no longer has."""
        lost = {number for number, value in self._values.items() if value is not None and not _is_there(value)}
        for number in lost:
            read = (reader.reads_now() for reader in self._readers.get(number, ()))
            self._values[number] = next((value for value in read if value is not None), None)
        left = {number for number in lost if self._values[number] is None}
        if left and self._before is not None:
            found = {number: self._values[number] for number in lost - left}
            self._values.update(self._before.made_alike(left, graph, found))


def _is_there(value: Any) -> bool:
    """Whether a value is still part of its graph."""
    if value is None:
        return False
    try:
        value.unique()
    except RuntimeError:
        return False
    return True


class _Names:
    """The values of a graph by names, by which they are found in a copy of it: those without one are given one."""

    def __init__(self, values: Mapping[int, Any]) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._given: set[str] = set()
        for number, value in values.items():
            if value is None:
                continue
            name = value.debugName()
            if name == str(value.unique()):
                # No variable of a program has such a name.
                name = f"modelexport-{name}"
                value.setDebugName(name)
                self._given.add(name)
            self._numbers.setdefault(name, []).append(number)

    def find_in(self, graph: Any) -> dict[int, Any]:
        """The values in the copy, whose names are then as they would have been."""
        found: dict[int, Any] = {}
        for value in (value for block in blocks_of(graph) for value in values_of(block)):
            name = value.debugName()
            if name in self._numbers:
                found.update(dict.fromkeys(self._numbers[name], value))
                if name in self._given:
                    value.setDebugName("")
        return found


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """A graph as it was: a copy, the names of its values as printed, and those of the values that are followed."""

    copy: Any
    text: str
    names: dict[int, str]

    @classmethod
    def take(cls, graph: Any, values: Mapping[int, Any]) -> _Snapshot:
        names = {number: value.debugName() for number, value in values.items() if value is not None}
        return cls(graph.copy(), graph.str(False), names)

    def made_alike(self, lost: set[int], graph: Any, found: Mapping[int, Any]) -> dict[int, Any]:
        """For each lost value the one that the same operations made of the same values: merged or made anew."""
        names = self._names_in_copy()
        keys: dict[object, int] = {}
        now = {value.debugName(): value for value in values_of(graph)}
        after = _value_classes(graph, keys, {})
        # What is still there, or was found otherwise, is what it is, however it is made now.
        now.update({self.names[number]: value for number, value in found.items()})
        known = {
            unique: after[now[name].unique()]
            for unique, name in names.items()
            if name in now and now[name].unique() in after
        }
        before = _value_classes(self.copy, keys, known)
        survivors: dict[int, Any] = {}
        for value in values_of(graph):
            survivors.setdefault(after[value.unique()], value)
        alike = {name: survivors.get(before[unique]) for unique, name in names.items() if unique in before}
        return {number: alike.get(self.names[number]) for number in lost}

    def _names_in_copy(self) -> dict[int, str]:
        """By the numbers of the copy, the names that the values of its main block had; none where that is unsure."""
        values, names = list(_values_as_printed(self.copy)), _DEFINED.findall(self.text)
        if len(values) != len(names):
            return {}
        return {value.unique(): name for value, name in zip(values, names, strict=True)}


def _value_classes(graph: Any, keys: dict[object, int], known: dict[int, int]) -> dict[int, int]:
    """For each value of the main block a number that values have in common which are equal by construction."""
    classes: dict[int, int] = {}
    for place, value in enumerate(given_to(graph)):
        classes[value.unique()] = keys.setdefault(("input", place), len(keys))
    for node in graph.nodes():
        key = _node_key(node, classes)
        for place, value in enumerate(outputs_of(node)):
            unique = value.unique()
            classes[unique] = known[unique] if unique in known else keys.setdefault((key, place), len(keys))
    return classes


def _node_key(node: Any, classes: dict[int, int]) -> object:
    inputs = tuple(classes.get(value.unique(), -1) for value in inputs_of(node))
    content = node.output().toIValue() if node.outputsSize() == 1 else None
    if not inputs and content is not None:
        if isinstance(content, int | float):
            content = torch.tensor(content)
        if not isinstance(content, torch.Tensor):
            return ("constant", str(content))
        if content.numel() <= _SMALL and not content.is_complex():
            # The exporter gives constants other types as it goes: numbers count, whatever their type.
            return ("constant", tuple(content.shape), str(content.float().tolist()))
    if -1 in inputs or not inputs or list(node.blocks()):
        return ("alone", object())
    attributes = tuple((name, str(getattr(node, node.kindOf(name))(name))) for name in node.attributeNames())
    return (node.kind(), attributes, inputs)


def _tensors(values: Iterable[Any]) -> list[Any]:
    """The tensors among values, and inside of the tuples and lists among them."""
    found: list[Any] = []
    waiting = list(values)[::-1]
    while waiting:
        value = waiting.pop()
        if is_tensor(value):
            found.append(value)
        else:
            waiting.extend(reversed(inputs_of(value.node())))
    return found


def _values_as_printed(graph: Any) -> Iterator[Any]:
    """The values in the order in which a printed graph defines them: those of a node's blocks behind it."""
    yield from given_to(graph)
    waiting = [iter(graph.nodes())]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
        elif is_block(node):
            yield from given_to(node)
            waiting.append(iter(node.nodes()))
        else:
            yield from outputs_of(node)
            waiting.append(iter(list(node.blocks())))
