"""Nodes that the exporter fused in place before its graph can be serialized: the scopes of the nodes they replace.

A pass gives a node the inputs of a removed node and the removed node's work, or replaces several nodes by a new one;
the scope names only one of them. Values keep their numbers while passes modify a graph in place, so the graphs before
and after are compared by these numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from modelexport.capture.torchscript.jit_graph import blocks_of, inputs_of, operation_of, outputs_of, values_of
from modelexport.torch_support.private_jit import JitPass, is_tensor, pass_changed, pass_through


class FusionWatch:
    """Watches one export.

    Attributes:
        scopes: The scopes of the removed nodes that a node replaces, by the number of its first output.
    """

    def __init__(self) -> None:
        self.scopes: dict[int, set[str]] = {}
        self._before: Any = None
        self._numbers: list[int] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Compare the graph within the context: as it was translated, and as the exporter renumbers it."""
        with pass_through(JitPass.TO_ONNX, self._translate), pass_through(JitPass.CANONICALIZE, self._renumber):
            yield

    def _translate(self, run_pass: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        result = run_pass(graph, *rest)
        # The values of the copy have other numbers, and the same order.
        self._before = result.copy()
        self._numbers = _numbers(result)
        return result

    def _renumber(self, run_pass: Callable[..., Any], graph: Any, *rest: Any) -> Any:
        numbers = _numbers(graph)
        found: dict[int, set[str]] = {}
        if not set(numbers).issuperset(self._numbers):
            found = _Comparison(self._before, self._numbers, set(numbers)).replaced_scopes(graph)
        self._before = None
        result = run_pass(graph, *rest)
        renumbered = _numbers(result)
        if len(renumbered) != len(numbers):
            raise pass_changed(JitPass.CANONICALIZE, "it does not keep every value")
        new = dict(zip(numbers, renumbered, strict=True))
        self.scopes = {new[number]: scopes for number, scopes in found.items()}
        return result


def _values(graph: Any) -> list[Any]:
    """Return the values of the graph and of its blocks, in the order that copies keep."""
    return [value for block in blocks_of(graph) for value in values_of(block)]


def _numbers(graph: Any) -> list[int]:
    return [value.unique() for value in _values(graph)]


class _Comparison:
    """Compares a graph with its copy from before; a value is known by its number in the graph."""

    def __init__(self, copy: Any, numbers: list[int], kept: set[int]) -> None:
        values = _values(copy)
        self._outputs_before = list(copy.outputs())
        self._before = dict(zip(numbers, values, strict=True))
        self._number = {value.unique(): number for number, value in self._before.items()}
        self._kept = kept
        self._found: dict[int, set[str]] = {}

    def replaced_scopes(self, graph: Any) -> dict[int, set[str]]:
        for block in blocks_of(graph):
            for node in block.nodes():
                number = _number_of(node)
                if number in self._before:
                    self._compare(node, self._before[number].node())
        for now, before in zip(graph.outputs(), self._outputs_before, strict=True):
            if self._is_moved(now, before) and now.unique() not in self._before:
                self._add_new(now, self._removed_from([before]))
        return self._found

    def _compare(self, node: Any, before: Any) -> None:
        now, then = inputs_of(node), inputs_of(before)
        if len(now) != len(then):
            self._add(node, self._removed_from(then))
            return
        moved = [(new, old) for new, old in zip(now, then, strict=True) if self._is_moved(new, old)]
        past = [(new, old) for new, old in moved if new.unique() in self._before]
        for new, old in moved:
            if new.unique() not in self._before:
                self._add_new(new, self._removed_from([old]))
        removed = self._removed_from(old for _, old in past)
        if not removed:
            return
        operation = operation_of(node)
        if operation == operation_of(before) and all(_is_alike(new, old) for new, old in past):
            # Together the removed nodes did nothing. Any node with the same operation may be the one that was kept.
            removed = [other for other in removed if operation_of(other) == operation]
        self._add(node, removed)

    def _is_moved(self, now: Any, before: Any) -> bool:
        """Whether a consumer has another value in place of one that was removed."""
        number = self._number[before.unique()]
        return number not in self._kept and number != now.unique()

    def _removed_from(self, values: Iterable[Any]) -> list[Any]:
        """Return the removed nodes that computed these values of the copy from values that were kept; no constants."""
        found: dict[int, Any] = {}
        pending = list(values)
        while pending:
            value = pending.pop()
            node = value.node()
            if self._number[value.unique()] in self._kept or not node.inputsSize() or _number_of(node) in found:
                continue
            found[_number_of(node)] = node
            pending.extend(inputs_of(node))
        return list(found.values())

    def _add_new(self, value: Any, replaced: list[Any]) -> None:
        """Add what a new node replaces; new nodes that it consumes have a part in it."""
        pending, seen = [value], set()
        while pending:
            value = pending.pop()
            if value.unique() not in self._before and value.unique() not in seen:
                seen.add(value.unique())
                self._add(value.node(), replaced)
                pending.extend(inputs_of(value.node()))

    def _add(self, node: Any, replaced: list[Any]) -> None:
        if replaced and node.inputsSize():
            self._found.setdefault(_number_of(node), set()).update(other.scopeName() for other in replaced)


def _number_of(node: Any) -> int:
    return int(outputs_of(node)[0].unique()) if node.outputsSize() else -1


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two values have the same type and shape, as far as these are known."""
    if not (is_tensor(one) and is_tensor(other)):
        return False
    kinds = one.type(), other.type()
    return len({(str(kind.dtype()), str(kind.varyingSizes())) for kind in kinds}) == 1
