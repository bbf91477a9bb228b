"""One level of a file: the calls inside of one call and the nodes it owns, with the tensors between them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Literal

from modelexport.display import counted, printable
from modelexport.errors import InputError
from modelexport.viewing.page_data import NONE, PageData

_WEIGHT = 2
_MOST_SUGGESTED, _MOST_CANDIDATES = 2, 2_000
_MOST_LINES = 3
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclasses.dataclass(frozen=True)
class Box:
    """A box of a drawing.

    Attributes:
        id: Its id in the drawing.
        kind: What it is.
        title: The first line of its label.
        lines: Further lines.
    """

    id: str
    kind: Literal["call", "calls", "node", "input", "output"]
    title: str
    lines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Edge:
    """Tensors from one box to another, a line of label for each."""

    source: int
    target: int
    lines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Level:
    """The boxes and edges of one level; edges have positions of boxes."""

    title: str
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def read_level(data: PageData, call_id: str = "") -> Level:
    """The level of a call; the empty id is the root call.

    Raises:
        InputError: There is no such call.
    """
    ids = [data.strings[name] for name in data.calls.id]
    if call_id not in ids:
        near = difflib.get_close_matches(call_id[:200], ids[:_MOST_CANDIDATES], n=_MOST_SUGGESTED)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "modelexport tree lists the modules"
        raise InputError(f"{data.file} has no module call {call_id!r}: {hint}")
    return _LevelReader(data, ids.index(call_id)).read()


class _LevelReader:
    def __init__(self, data: PageData, call: int) -> None:
        self._data, self._call = data, call
        self._boxes: list[Box] = []
        # The box of each call inside and of each node that the call owns; of each tensor that enters or leaves.
        self._calls: dict[int, int] = {}
        self._nodes: dict[int, int] = {}
        self._entering: dict[int, int] = {}
        self._edges: dict[tuple[int, int], dict[str, None]] = {}

    def read(self) -> Level:
        data = self._data
        self._add_calls()
        for node, owner in enumerate(data.nodes.call):
            if owner == self._call:
                self._nodes[node] = self._add_box("node", data.strings[data.nodes.op[node]], self._node_lines(node))
        for node, inputs in enumerate(data.nodes.inputs):
            for tensor in inputs:
                self._connect(tensor, node)
        for graph in data.graphs:
            # The outputs of a subgraph are consumed by the node that owns it.
            for tensor in graph.outputs if graph.owner != NONE else ():
                self._connect(tensor, graph.owner)
        self._add_outputs()
        edges = (Edge(source, target, _shortened(lines)) for (source, target), lines in self._edges.items())
        return Level(self._title(), tuple(self._boxes), tuple(edges))

    def _title(self) -> str:
        module = self._data.calls.module[self._call]
        name = self._data.strings[self._data.calls.id[self._call]]
        return printable(f"{name}: {self._class(module)}" if name else self._class(module))

    def _class(self, module: int) -> str:
        return self._data.strings[self._data.modules.class_name[module]]

    def _add_box(
        self, kind: Literal["call", "calls", "node", "input", "output"], title: str, lines: Iterable[str] = ()
    ) -> int:
        self._boxes.append(Box(f"b{len(self._boxes)}", kind, printable(title), tuple(map(printable, lines))))
        return len(self._boxes) - 1

    def _add_calls(self) -> None:
        """A box for each call that has nodes or parameters, one for a run of calls with equal structure."""
        data = self._data
        callees = [call for call, parent in enumerate(data.calls.parent) if parent == self._call]
        groups = {call: number for number, repeat in enumerate(data.repeats) for call in repeat.calls}
        run: list[int] = []
        for call in callees:
            if run and (call not in groups or groups[call] != groups.get(run[0])):
                self._add_run(run)
                run = []
            run.append(call)
        if run:
            self._add_run(run)

    def _add_run(self, run: list[int]) -> None:
        data = self._data
        first = data.calls.module[run[0]]
        names = [data.strings[data.calls.id[call]] for call in (run[0], run[-1])]
        count = sum(data.calls.nodes[call] for call in run)
        parameters = sum({m: data.modules.parameters_total[m] for m in (data.calls.module[c] for c in run)}.values())
        lines = [" … ".join(dict.fromkeys(self._below(name) for name in names))]
        lines.append(", ".join([counted(count, "node"), *([counted(parameters, "parameter")] if parameters else [])]))
        title = self._class(first) if len(run) == 1 else f"{self._class(first)} {_TIMES}{len(run)}"
        number = self._add_box("call" if len(run) == 1 else "calls", title, lines)
        self._calls.update(dict.fromkeys(run, number))

    def _below(self, name: str) -> str:
        around = self._data.strings[self._data.calls.id[self._call]]
        return name.removeprefix(f"{around}.") if around else name

    def _node_lines(self, node: int) -> Iterator[str]:
        data = self._data
        pairs = data.nodes.attributes[node]
        for name, text in zip(pairs[::2], pairs[1::2], strict=True):
            if data.strings[text]:
                yield f"{data.strings[name]} = {data.strings[text]}"

    def _box_of(self, node: int) -> int | None:
        """The box that a node is in; None for one outside of this level."""
        if node in self._nodes:
            return self._nodes[node]
        call = self._data.nodes.call[node]
        while call != NONE and call not in self._calls:
            call = self._data.calls.parent[call]
        return self._calls.get(call)

    def _connect(self, tensor: int, consumer: int) -> None:
        target = self._box_of(consumer)
        if tensor == NONE or target is None or self._data.tensors.source[tensor] == _WEIGHT:
            return
        producer = self._data.tensors.producer[tensor]
        source = self._box_of(producer) if producer != NONE else None
        if source is None:
            source = self._entering_box(tensor)
        if source != target:
            self._edges.setdefault((source, target), {})[self._label(tensor, target)] = None

    def _entering_box(self, tensor: int) -> int:
        if tensor not in self._entering:
            name = self._port_name(self._call, tensor, "inputs") or self._data.strings[self._data.tensors.name[tensor]]
            self._entering[tensor] = self._add_box("input", name)
        return self._entering[tensor]

    def _add_outputs(self) -> None:
        """A box for each output of the call that a box of this level produces."""
        for name, tensor, *_ in self._data.calls.outputs[self._call] or self._graph_outputs():
            producer = self._data.tensors.producer[tensor] if tensor != NONE else NONE
            source = self._box_of(producer) if producer != NONE else self._entering.get(tensor)
            if source is not None:
                target = self._add_box("output", self._data.strings[name] or "output")
                self._edges.setdefault((source, target), {})[self._type(tensor)] = None

    def _graph_outputs(self) -> list[list[int]]:
        """The outputs of the main graph, for the root call of a file that does not record its own."""
        outputs = self._data.graphs[0].outputs if self._data.calls.parent[self._call] == NONE else []
        return [[self._data.tensors.name[tensor], tensor] for tensor in outputs if tensor != NONE]

    def _port_name(self, call: int, tensor: int, side: Literal["inputs", "outputs"]) -> str:
        ports = self._data.calls.inputs[call] if side == "inputs" else self._data.calls.outputs[call]
        return next((self._data.strings[port[0]] for port in ports if port[1] == tensor), "")

    def _label(self, tensor: int, target: int) -> str:
        call = next((call for call, box in self._calls.items() if box == target), NONE)
        name = self._port_name(call, tensor, "inputs") if call != NONE else ""
        return ": ".join(text for text in (name, self._type(tensor)) if text)

    def _type(self, tensor: int) -> str:
        tensors, strings = self._data.tensors, self._data.strings
        return " ".join(text for text in (strings[tensors.dtype[tensor]], strings[tensors.shape[tensor]]) if text)


def _shortened(lines: Iterable[str]) -> tuple[str, ...]:
    shown = tuple(printable(line) for line in lines if line)
    return (
        shown if len(shown) <= _MOST_LINES else (*shown[: _MOST_LINES - 1], f"and {len(shown) - _MOST_LINES + 1} more")
    )
