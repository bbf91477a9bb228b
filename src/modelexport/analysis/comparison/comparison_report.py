"""The result of a comparison, and its JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from modelexport.analysis.comparison.weight_changes import ContentReport, WeightChange, WeightTotals
from modelexport.display import Summary, summarized
from modelexport.hierarchy import json_schema

SCHEMA_VERSION = 1


class FileSummary(msgspec.Struct, frozen=True):
    """One of the two files.

    Attributes:
        file: Its path.
        nodes: The number of nodes, those of subgraphs and functions included.
        hierarchy: The source of the owners: ``sidecar``, ``tags``, ``torch metadata``, ``scoped names``, ``none``.
        missing: Why there is no sidecar.
        unowned: The number of nodes without a recorded owner; their owners are inferred from the neighbors.
        calls: The number of module calls that own nodes.
        weights: The number of weights, with elements, bytes, and bytes by type.
    """

    file: str
    nodes: int
    hierarchy: str
    missing: str
    unowned: int
    calls: int
    weights: WeightTotals


class NodeAt(msgspec.Struct, frozen=True):
    """A node: its id and position in the file, its operator, and the module call that owns it."""

    id: str
    position: int
    operation: str
    module: str


class NodeChange(msgspec.Struct, frozen=True):
    """A node that differs between the models.

    `changed` nodes are matched and differ in `what`; `moved` nodes are equal but have different owners.
    """

    kind: Literal["added", "removed", "changed", "moved"]
    module: str
    before: NodeAt | None = None
    after: NodeAt | None = None
    what: tuple[str, ...] = ()
    detail: str = ""


class ModuleChange(msgspec.Struct, frozen=True):
    """The nodes and weights of one module call in both models."""

    module: str
    class_name: str
    tag: str
    nodes_before: int = 0
    nodes_after: int = 0
    same: int = 0
    changed: int = 0
    added: int = 0
    removed: int = 0
    moved: int = 0
    parameters_before: int = 0
    parameters_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def differs(self) -> bool:
        """Whether a node or a weight of it differs."""
        nodes = self.changed or self.added or self.removed or self.moved
        weights = (self.parameters_before, self.bytes_before) != (self.parameters_after, self.bytes_after)
        return bool(nodes) or weights


class TagCount(msgspec.Struct, frozen=True):
    """The number of nodes with a tag in each model."""

    tag: str
    before: int
    after: int


class FieldChange(msgspec.Struct, frozen=True):
    """A field of the interface, the opsets or the metadata that differs; None if a model does not have it."""

    field: str
    before: str | None
    after: str | None


class NodeCounts(msgspec.Struct, frozen=True):
    """The number of nodes by kind of change. `renamed` nodes are equal or changed, and have different names."""

    same: int
    changed: int
    added: int
    removed: int
    moved: int
    renamed: int


def _summary(found: Comparison) -> Summary:
    facts = {
        "before": found.before.file,
        "after": found.after.file,
        "same": found.same,
        "same_topology": found.same_topology,
        "differences": ", ".join(found.differences) or "none",
        "nodes": ", ".join(f"{count} {kind}" for kind, count in msgspec.structs.asdict(found.nodes).items()),
    }
    rows = [
        (m.module or "(root)", m.class_name, m.nodes_before, m.nodes_after, m.changed, m.added, m.removed)
        for m in found.modules
        if m.differs
    ]
    return Summary(facts, ("module", "class", "before", "after", "changed", "added", "removed"), rows)


@summarized(_summary)
class Comparison(msgspec.Struct, frozen=True):
    """The result of comparing two models.

    Attributes:
        schema_version: The version of this format.
        before: The first file.
        after: The second file.
        same: Whether only names and metadata differ.
        same_topology: Whether both have the same nodes, attributes and connections, and weights of the same types and
            shapes.
        same_order: Whether matched nodes are in the same order.
        differences: The kinds of differences.
        first_difference: The first node that changes the topology, in the order of the first file, then the second.
        nodes: The number of nodes by kind of change.
        modules: The module calls with a node or a weight, in the order of the models.
        changes: The nodes that differ, in order.
        tags: The number of nodes by tag.
        weights: The weights that differ.
        contents: The comparison of the contents of the weights; None if not requested.
        interface: Differences in the model's inputs and outputs.
        opsets: Differences in the operator sets and the IR version.
        metadata: Differences in the metadata: producer, exporter, properties.
    """

    schema_version: int
    before: FileSummary
    after: FileSummary
    same: bool
    same_topology: bool
    same_order: bool
    differences: tuple[str, ...]
    first_difference: NodeChange | None
    nodes: NodeCounts
    modules: tuple[ModuleChange, ...]
    changes: tuple[NodeChange, ...]
    tags: tuple[TagCount, ...]
    weights: tuple[WeightChange, ...]
    contents: ContentReport | None
    interface: tuple[FieldChange, ...]
    opsets: tuple[FieldChange, ...]
    metadata: tuple[FieldChange, ...]


def comparison_schema() -> dict[str, Any]:
    """The JSON Schema of the output of `modelexport compare --format json`."""
    return json_schema("modelexport comparison", Comparison)
