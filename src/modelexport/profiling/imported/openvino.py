"""Read the execution graph of OpenVINO: layers as they were executed, with times and the names of the original nodes.

`compiled_model.get_runtime_model()`, serialized after inference with performance counters (`PERF_COUNT`), has
``execTimeMcs``, ``execOrder`` and ``originalLayersNames`` for each layer.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from xml.parsers import expat

from modelexport.errors import FileFormatError
from modelexport.profiling.imported.limited_file import read_limited
from modelexport.profiling.imported.node_names import Layer, NodeNames, measured
from modelexport.profiling.records import Measurement

_MICROSECOND = 1e-6
_MOST_MICROSECONDS = 1e15
_LAYER = ["net", "layers", "layer"]
_EDGE = ["net", "edges", "edge"]
# The name that OpenVINO gives to a node of its own: its type and a number.
_GENERATED = re.compile(r"[A-Z][A-Za-z0-9]*_\d+")
_HOW = (
    "serialize compiled_model.get_runtime_model() after runs with the property PERF_COUNT, as benchmark_app does with "
    "-pc -exec_graph_path"
)


@dataclasses.dataclass
class _Entry:
    name: str
    op: str
    order: int = 0
    time: float | None = None
    nodes: tuple[str, ...] = ()


def read_openvino(path: Path, names: NodeNames) -> Measurement:
    """Read an execution graph.

    Args:
        path: Its XML file.
        names: The nodes of the file that OpenVINO compiled.

    Raises:
        FileFormatError: It is not an execution graph, has no times, or is one of another file.
    """
    graph = _ExecutionGraph()
    try:
        graph.read(read_limited(path))
    except (expat.ExpatError, ValueError) as error:
        raise FileFormatError(f"{path} is not an execution graph of OpenVINO ({error}): {_HOW}") from error
    positions = {identity: position for position, identity in enumerate(graph.layers)}
    entries = list(graph.layers.values())
    consumers: list[list[int]] = [[] for _ in entries]
    for source, target in graph.edges:
        if source in positions and target in positions:
            consumers[positions[source]].append(positions[target])
    executed = [position for position, entry in enumerate(entries) if entry.time is not None]
    if not executed:
        raise FileFormatError(f"{path} has no layer with a time (execTimeMcs): {_HOW}")
    layers = [
        Layer(
            name=entry.name,
            op=entry.op,
            seconds=(entry.time or 0.0) * _MICROSECOND,
            nodes=tuple(n for n in entry.nodes if names.find(n) is not None or not _GENERATED.fullmatch(n)),
            consumers=consumers[position],
        )
        for position, entry in enumerate(entries)
    ]
    return measured(
        layers,
        sorted(executed, key=lambda position: entries[position].order),
        names,
        runtime="OpenVINO",
        where=path,
        note="times are OpenVINO's means over its runs, in whole microseconds; the time outside of layers is not known",
    )


class _ExecutionGraph:
    """The layers of the main graph by id, and the edges between them."""

    def __init__(self) -> None:
        self.layers: dict[str, _Entry] = {}
        self.edges: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._current: _Entry | None = None

    def read(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        # Without a document type there are no entities, which could expand without bound or read other files.
        parser.StartDoctypeDeclHandler = self._refuse_document_type
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.Parse(content, True)

    def _refuse_document_type(self, *_: object) -> None:
        raise ValueError("it declares a document type")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._open.append(tag)
        if self._open == _LAYER:
            self._current = _Entry(attributes.get("name", ""), attributes.get("type", ""))
            self.layers[attributes.get("id", "")] = self._current
        elif self._open == [*_LAYER, "data"] and self._current is not None:
            time = attributes.get("execTimeMcs", "not_executed")
            if time != "not_executed":
                self._current.time = float(time)
                if not 0 <= self._current.time <= _MOST_MICROSECONDS:
                    raise ValueError(f"a layer took {time} microseconds")
            order = attributes.get("execOrder", "0")
            self._current.order = int(order) if order.isdecimal() and len(order) < 10 else 0
            self._current.nodes = tuple(filter(None, attributes.get("originalLayersNames", "").split(",")))
        elif self._open == _EDGE:
            self.edges.append((attributes.get("from-layer", ""), attributes.get("to-layer", "")))
        elif self._open[0] != "net":
            raise ValueError(f"its root is <{tag}>, not <net>")

    def _end(self, tag: str) -> None:
        if self._open == _LAYER:
            self._current = None
        self._open.pop()
