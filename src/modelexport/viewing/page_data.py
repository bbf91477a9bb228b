"""The data of a page as it is stored there: tables of modules, calls, graphs, nodes and tensors, and values over them.

Modules, calls, graphs, nodes and tensors are known by their position in their table, -1 is none. `Text` fields are
positions in the table of strings, whose first entry is the empty string. Tables are stored by column: a file has
thousands of nodes, and the names of their fields would be half of a page.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from modelexport.hierarchy import Kind, json_schema, or_null

FORMAT = 1
NONE = -1
KINDS = tuple(kind.value for kind in Kind)
Text = int
Values = list[float | None]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The file as a whole.

    Attributes:
        strategy: The strategy of the export.
        exporter: The exporter that wrote the graph.
        origin: The source of the hierarchy: the sidecar, or what it was recovered from.
        producer: The program that the file names as its producer.
        opsets: The operator sets by domain.
        ir_version: The version of ONNX's file format.
        coverage: The fraction of nodes that have an owner.
        bytes: The size of the file and of its external data.
        check: What the export showed of the file in onnxruntime; empty if unknown.
        private: Whether source lines are left out.
    """

    strategy: str
    exporter: str
    origin: str
    producer: str
    opsets: dict[str, int]
    ir_version: int
    coverage: float
    bytes: int
    check: str
    private: bool


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    """The modules in the order of the document, with the columns that ``analyze`` has.

    `visible` says whether a module has a segment in tags. `parameters` repeats name, type and shape; `operations`
    repeats operator and number, `kinds` the position in `KINDS` and number. `aliases` and `arguments` are by module.
    """

    path: list[Text]
    class_name: list[Text] = msgspec.field(name="class")
    qualified_class: list[Text]
    tag: list[Text]
    visible: list[int]
    parent: list[int]
    parameters: list[list[Text]]
    calls: list[int]
    own_nodes: list[int]
    nodes: list[int]
    own_parameters: list[int]
    parameters_total: list[int]
    parameter_bytes: list[int]
    operations: list[list[int]]
    kinds: list[list[int]]
    lowest_confidence: Values
    aliases: dict[int, list[Text]]
    arguments: dict[int, list[Text]]


# An input or output of a call: the name and the tensor; with a stand-in, or for a tensor that the graph does not have,
# also the stand-in, the type and the shape.
Port = list[int]


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """The module calls in the order they began, the root call first; `nodes` counts those of the calls inside too."""

    id: list[Text]
    module: list[int]
    parent: list[int]
    tag: list[Text]
    inputs: list[list[Port]]
    outputs: list[list[Port]]
    own_nodes: list[int]
    nodes: list[int]


class Graph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The main graph, a subgraph in an attribute of the node `owner`, or a local function ``domain::name``."""

    name: str
    owner: int
    inputs: list[int]
    outputs: list[int]
    attribute: str = ""
    function: str = ""


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes in the order of the document, by column.

    `kind` is a position in `KINDS`, `attributes` alternates names and texts. By node, `contributors` and `context` have
    calls, and `function` has the graph of the local function that it calls.
    """

    id: list[Text]
    name: list[Text]
    op: list[Text]
    domain: list[Text]
    graph: list[int]
    call: list[int]
    kind: list[int]
    confidence: list[float]
    reason: list[Text]
    inputs: list[list[int]]
    outputs: list[list[int]]
    attributes: list[list[Text]]
    source: list[Text]
    contributors: dict[int, list[int]]
    context: dict[int, list[int]]
    function: dict[int, int]


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors by column. `source` is 0 for the output of a node, 1 for a graph input, 2 for a weight."""

    name: list[Text]
    dtype: list[Text]
    shape: list[Text]
    producer: list[int]
    source: list[int]
    parameter: dict[int, Text]


class Weight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An initializer.

    Attributes:
        bytes: Its size.
        elements: The number of its elements.
        external: Whether it is stored in another file.
        sampled: Whether the statistics are those of a sample of its elements.
        min: The smallest finite element.
        max: The largest finite element.
        mean: The mean of the finite elements.
        std: Their standard deviation.
        zeros: The fraction of elements that are zero.
        nonfinite: The number of elements that are infinite or NaN.
        text: The content of a small one.
    """

    bytes: int
    elements: int
    external: bool = False
    sampled: bool = False
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    zeros: float | None = None
    nonfinite: int = 0
    text: str = ""


class Odd(msgspec.Struct, frozen=True):
    """A call of the same class and caller as a group whose structure differs from it: what differs, in words."""

    call: int
    differences: tuple[str, ...]


class Repeat(msgspec.Struct, frozen=True):
    """Calls of one caller with equal structure, in order, and those of the same class that differ."""

    calls: tuple[int, ...]
    label: str
    odd: tuple[Odd, ...]


class Overlay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value of each call, and of each node, that colours them.

    Attributes:
        id: Its id in permalinks.
        title: Its title.
        description: What the value is and where it comes from.
        scale: How values become colours.
        unit: The unit of the values.
        calls: The value of each call, without the calls inside of it; None where there is none.
        categories: For a scale of categories: the names, whose positions the values are.
        totals: The values with the calls inside.
        nodes: The value of each node.
        details: Lines about a call.
        notes: What the user should know of the values.
        sizes: Whether the map can be sized by it.
    """

    id: str
    title: str
    description: str
    scale: Literal["sequential", "diverging", "category"]
    unit: Literal["seconds", "bytes", "count", "ratio", "decibel", "share", ""]
    calls: Values
    categories: tuple[str, ...] = ()
    totals: Values | None = None
    nodes: Values | None = None
    details: dict[int, list[str]] = {}
    notes: tuple[str, ...] = ()
    sizes: bool = False


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a page shows of one file.

    Attributes:
        format: The version of this format.
        file: The name of the file.
        graph_hash: The hash of its graph.
        about: The file as a whole.
        notes: What the user should know: fallbacks, lost evidence, what was left out.
        strings: The texts that other tables refer to.
        modules: The modules, the root first.
        calls: The module calls in the order they began, the root call first.
        graphs: The main graph, then subgraphs and local functions.
        nodes: The nodes.
        tensors: The tensors.
        weights: The initializers, by tensor.
        repeats: Groups of calls with equal structure.
        overlays: Values over calls and nodes.
    """

    format: int = FORMAT
    file: str
    graph_hash: str
    about: About
    notes: list[str]
    strings: list[str]
    modules: Modules
    calls: Calls
    graphs: list[Graph]
    nodes: Nodes
    tensors: Tensors
    weights: dict[int, Weight]
    repeats: list[Repeat]
    overlays: list[Overlay]


def rounded(value: float) -> float:
    """A number with as many digits as a page shows."""
    return float(f"{value:.6g}")


class StringTable:
    """Texts that are stored once; the first is empty."""

    def __init__(self) -> None:
        self._positions = {"": 0}

    def add(self, text: str) -> Text:
        """The position of a text."""
        return self._positions.setdefault(text, len(self._positions))

    def texts(self) -> list[str]:
        """The texts by position."""
        return list(self._positions)


def page_schema() -> dict[str, Any]:
    """The JSON Schema of the data in a page."""
    schema: dict[str, Any] = or_null(json_schema("modelexport page", PageData))
    return schema
