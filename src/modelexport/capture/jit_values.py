"""Which tensors of the TorchScript exporter's graph a module call was given and returned.

The tracer knows the value of its graph that holds a tensor. On the way to ONNX the exporter rewrites that graph in
place, translates it, and twice numbers it anew; each value is followed through: by its number where the graph stays the
same, by the exporter's own table through the translation, by its place in the graph through a renumbering. A value that
a rewriting removed is what its readers now read in its place, or the one that was made in the same way.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from modelexport.capture.jit_graph import blocks_of, inputs_of, outputs_of
from modelexport.errors import ExportError

_FIRST = "_jit_pass_inline"
_MERGING = "_jit_pass_cse"
_TRANSLATING = "_jit_pass_onnx"
_RENUMBERING = "_jit_pass_canonicalize"
_FOLDING = ("_jit_pass_onnx_eval_peephole", "_jit_pass_onnx_constant_fold")
_SMALL = 64


class ConstantAddedError(ExportError):
    """To look a tensor up would have changed the graph: the tracer had not met it before."""


def traced_values(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """The numbers of the values that hold these tensors in the graph that is being traced.

    Raises:
        ConstantAddedError: The tracer did not know one of them, and has entered it as a constant. The trace is spoilt:
            the constant stands earlier in the graph than it would have.
    """
    # The tracer names a value after a variable of the frames that look it up: there must be none that is the tensor.
    return [_traced_value(tensors, place) for place in range(len(tensors))]


def _traced_value(tensors: Sequence[torch.Tensor], place: int) -> int | None:
    tracing: Any = torch._C
    state = tracing._get_tracing_state()
    try:
        value = tracing._get_value_trace(tensors[place])
    except RuntimeError:
        # An unknown tensor that requires a gradient: the tracer refuses, and stops tracing.
        tracing._set_tracing_state(state)
        return None
    if value.toIValue() is not None and not value.uses():
        raise ConstantAddedError
    number: int = value.unique()
    return number


class ValueTracker:
    """Follows values of the traced graph to the graph that is folded and written."""

    def __init__(self) -> None:
        self._tracked: dict[int, int | None] = {}
        self._before: _Snapshot | None = None
        self._table: Any = None
        self._traced: tuple[_Structure, list[int | None]] | None = None

    def end_trace(self, state: Any, results: Sequence[int | None]) -> None:
        """The trace is complete; from here on the graph is numbered anew.

        Args:
            state: The tracer's state.
            results: The numbers of the model's results.
        """
        self._traced = _Structure.read(state.graph()), list(results)

    def track(self, numbers: Sequence[int | None]) -> None:
        """Follow the values with these numbers in the traced graph."""
        self._tracked.update({number: number for number in numbers if number is not None})

    def find(self, number: int | None) -> int | None:
        """The number that a traced value has at the end; None where nothing holds it any more."""
        return self._tracked.get(number) if number is not None else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See what the exporter does to its graph within the context."""
        from torch.onnx._internal.torchscript_exporter import utils

        with contextlib.ExitStack() as stack:
            stack.enter_context(_wrapped(torch._C, _FIRST, self._at_first))
            stack.enter_context(_wrapped(torch._C, _MERGING, self._merge))
            stack.enter_context(_wrapped(torch._C, _TRANSLATING, self._translate))
            stack.enter_context(_wrapped(torch._C, _RENUMBERING, self._renumber))
            for name in _FOLDING:
                stack.enter_context(_wrapped(torch._C, name, self._at_folding))
            stack.enter_context(_wrapped(utils, "_run_symbolic_function", self._see_table))
            yield

    def _at_first(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        if self._traced is not None:
            structure, results = self._traced
            self._traced = None
            self._move(_matched(structure, results, _Structure.read(graph), _tensors(graph.outputs())))
            self._before = _Snapshot.take(graph)
        return original(graph, *rest)

    def _merge(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        """Equal nodes become one: looked at by itself, because later rewritings take their readers away."""
        self._settle(graph, keep=True)
        result = original(graph, *rest)
        self._settle(graph, keep=True)
        return result

    def _see_table(self, original: Callable[..., Any], graph: Any, block: Any, node: Any, *rest: Any) -> Any:
        # The exporter's own table of old and new values, which grows as it goes.
        if len(rest) > 1:
            self._table = rest[1]
        return original(graph, block, node, *rest)

    def _translate(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        self._settle(graph)
        inputs = [value.unique() for value in graph.inputs()]
        self._table = None
        result = original(graph, *rest)
        table = dict(zip(inputs, [value.unique() for value in result.inputs()], strict=False))
        for old, new in self._table.items() if isinstance(self._table, dict) else ():
            # A value that nothing reads is gone by now, and says so.
            with contextlib.suppress(RuntimeError, AttributeError):
                table[old.unique()] = new.unique()
        self._table = None
        self._move(table)
        self._before = _Snapshot.take(result)
        return result

    def _renumber(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        before = _numbers(graph)
        self._settle(graph, numbers=before)
        result = original(graph, *rest)
        after = _numbers(result)
        self._move(dict(zip(before, after, strict=True)) if len(before) == len(after) else {})
        self._before = _Snapshot(result.copy(), after)
        return result

    def _at_folding(self, original: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        self._settle(graph)
        self._before = None
        return original(graph, *rest)

    def _settle(self, graph: Any, *, keep: bool = False, numbers: list[int] | None = None) -> None:
        """Find what became of the values that the graph no longer has.

        Args:
            graph: The graph.
            keep: Whether the same is to be asked again later.
            numbers: The numbers of the graph's values, where the caller has them.
        """
        if self._before is None:
            return
        numbers = numbers if numbers is not None else _numbers(graph)
        present = set(numbers)
        lost = {number for number in self._tracked.values() if number is not None and number not in present}
        found = self._before.replacements(lost, graph, present) if lost else {}
        self._tracked = {first: found.get(now, now) if now in lost else now for first, now in self._tracked.items()}
        self._tracked = {first: now if now in present else None for first, now in self._tracked.items()}
        self._before = _Snapshot(graph.copy(), numbers) if keep else None

    def _move(self, table: dict[int, int]) -> None:
        self._tracked = {first: table.get(now) if now is not None else None for first, now in self._tracked.items()}


@dataclasses.dataclass(frozen=True)
class _Snapshot:
    """A graph as it was: a copy, and the numbers that its values had, in order."""

    copy: Any
    numbers: list[int]

    @classmethod
    def take(cls, graph: Any) -> _Snapshot:
        return cls(graph.copy(), _numbers(graph))

    def replacements(self, lost: set[int], graph: Any, present: set[int]) -> dict[int, int]:
        """For each lost value the one that stands for it in `graph`, where that can be told."""
        values = list(_values(self.copy))
        if len(values) != len(self.numbers):
            return {}
        numbers = {value.unique(): number for value, number in zip(values, self.numbers, strict=True)}
        nodes = {output.unique(): node for node in _nodes(graph) for output in outputs_of(node)[:1]}
        found: dict[int, int] = {}
        results = list(graph.outputs())
        for value in values:
            number = numbers[value.unique()]
            if number in lost:
                now = _read_now(value, numbers, nodes, results)
                if now is not None and now in present:
                    found[number] = now
        left = lost - found.keys()
        if left:
            made_alike = self._made_alike(graph, found)
            found.update({number: made_alike[number] for number in left if number in made_alike})
        return found

    def _made_alike(self, graph: Any, found: dict[int, int]) -> dict[int, int]:
        """The values of `graph` that the same operations made of the same values as here: merged or made anew."""
        keys: dict[object, int] = {}
        after = _value_classes(graph, keys, {})
        numbers = dict(zip([value.unique() for value in _values(self.copy)], self.numbers, strict=True))
        # What is still there, or was found otherwise, is what it is, however it is made now.
        known = {
            unique: after[now] for unique, number in numbers.items() if (now := found.get(number, number)) in after
        }
        before = _value_classes(self.copy, keys, known)
        survivors: dict[int, int] = {}
        for unique, group in after.items():
            survivors.setdefault(group, unique)
        return {numbers[unique]: survivors[group] for unique, group in before.items() if group in survivors}


def _value_classes(graph: Any, keys: dict[object, int], known: dict[int, int]) -> dict[int, int]:
    """For each value of the main block a number that values have in common which are equal by construction."""
    classes: dict[int, int] = {}
    for place, value in enumerate(graph.inputs()):
        classes[value.unique()] = keys.setdefault(("input", place), len(keys))
    for node in graph.nodes():
        key = _node_key(node, classes)
        for place, value in enumerate(outputs_of(node)):
            unique = value.unique()
            classes[unique] = known[unique] if unique in known else keys.setdefault((key, place), len(keys))
    return classes


def _read_now(value: Any, numbers: dict[int, int], nodes: dict[int, Any], results: list[Any]) -> int | None:
    """What the readers of a value read in its place now."""
    for use in value.uses():
        user = use.user
        first = next(iter(outputs_of(user)), None)
        if first is None and use.offset < len(results):
            # What reads and makes nothing is the end of the graph.
            return int(results[use.offset].unique())
        now = nodes.get(numbers[first.unique()]) if first is not None else None
        if now is not None and now.kind() == user.kind() and now.inputsSize() == user.inputsSize():
            return int(now.inputsAt(use.offset).unique())
    return None


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


@dataclasses.dataclass(frozen=True)
class _Structure:
    """A graph in numbers: its inputs, and for each value what the node that made it reads and makes."""

    inputs: list[int]
    makers: dict[int, tuple[list[int], list[int]]]

    @classmethod
    def read(cls, graph: Any) -> _Structure:
        makers: dict[int, tuple[list[int], list[int]]] = {}
        for node in _nodes(graph):
            outputs = [value.unique() for value in outputs_of(node)]
            made = [value.unique() for value in inputs_of(node)], outputs
            makers.update(dict.fromkeys(outputs, made))
        return cls([value.unique() for value in graph.inputs()], makers)


def _tensors(values: Iterable[Any]) -> list[int]:
    """The tensors among values, and inside of the tuples and lists among them."""
    found: list[int] = []
    waiting = list(values)[::-1]
    while waiting:
        value = waiting.pop()
        if isinstance(value.type(), torch._C.TensorType):
            found.append(value.unique())
        else:
            waiting.extend(reversed(inputs_of(value.node())))
    return found


def _matched(
    before: _Structure, results: Sequence[int | None], after: _Structure, results_after: Sequence[int]
) -> dict[int, int]:
    """The values of a graph in a copy of it that lacks what no result needs: found from the results backwards."""
    table = dict(zip(before.inputs, after.inputs, strict=False))
    waiting = (
        [(one, other) for one, other in zip(results, results_after, strict=False) if one is not None]
        if len(results) == len(results_after)
        else []
    )
    while waiting:
        one, other = waiting.pop()
        if one in table:
            continue
        table[one] = other
        made, copied = before.makers.get(one), after.makers.get(other)
        if made is not None and copied is not None and [len(side) for side in made] == [len(side) for side in copied]:
            for first, second in zip(made, copied, strict=True):
                waiting.extend(zip(first, second, strict=True))
    return table


def _nodes(graph: Any) -> Iterator[Any]:
    for block in blocks_of(graph):
        yield from block.nodes()


def _values(graph: Any) -> Iterator[Any]:
    for block in blocks_of(graph):
        yield from block.inputs()
        for node in block.nodes():
            yield from outputs_of(node)


def _numbers(graph: Any) -> list[int]:
    return [value.unique() for value in _values(graph)]


@contextlib.contextmanager
def _wrapped(module: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, lambda *args, **kwargs: around(original, *args, **kwargs))
    try:
        yield
    finally:
        setattr(module, name, original)
