"""What differs between two models: nodes by module, tags, weights, interface and metadata."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from modelexport.analysis.comparison.model_index import Outline, outline
from modelexport.analysis.comparison.node_changes import TOPOLOGY, PairChange, changes_of_pairs, type_text
from modelexport.analysis.comparison.node_matching import Matching
from modelexport.analysis.comparison.node_owners import Ownership
from modelexport.analysis.comparison.weight_changes import (
    ContentReport,
    WeightChange,
    WeightTotals,
    compare_contents,
    compare_weights,
    weight_totals,
)
from modelexport.display import Summary, summarized
from modelexport.gc_pause import gc_paused
from modelexport.hierarchy import json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import ModelFile, read_model

SCHEMA_VERSION = 1

# What does not make two models different: how things are called, and who wrote the file.
INFORMATION = frozenset({"names", "metadata"})


class FileSummary(msgspec.Struct, frozen=True):
    """One of the two files.

    Attributes:
        file: Where it is.
        nodes: How many nodes it has, in bodies and functions too.
        hierarchy: Where the owners come from: ``sidecar``, ``tags``, ``torch metadata``, ``scoped names``, ``none``.
        missing: Why there is no sidecar, in words.
        unowned: Nodes for which the file names no owner; they are counted with the modules they lie between.
        calls: Module calls that own nodes.
        weights: Tensors, elements and bytes of its weights, and the bytes by type.
    """

    file: str
    nodes: int
    hierarchy: str
    missing: str
    unowned: int
    calls: int
    weights: WeightTotals


class NodeAt(msgspec.Struct, frozen=True):
    """A node: its identity and position in the file, its operation and the module call it is counted with."""

    id: str
    position: int
    operation: str
    module: str


class NodeChange(msgspec.Struct, frozen=True):
    """A node that is not the same in both models.

    `changed` nodes stand in the same place and differ in `what`; `moved` ones are the same and have another owner.
    """

    kind: Literal["added", "removed", "changed", "moved"]
    module: str
    before: NodeAt | None = None
    after: NodeAt | None = None
    what: tuple[str, ...] = ()
    detail: str = ""


class ModuleChange(msgspec.Struct, frozen=True):
    """One module call: its nodes and weights in both models."""

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
        """Whether anything in it is not the same."""
        nodes = self.changed or self.added or self.removed or self.moved
        weights = (self.parameters_before, self.bytes_before) != (self.parameters_after, self.bytes_after)
        return bool(nodes) or weights


class TagCount(msgspec.Struct, frozen=True):
    """How many nodes carry a tag in each model."""

    tag: str
    before: int
    after: int


class FieldChange(msgspec.Struct, frozen=True):
    """A field of the interface, the opsets or the metadata that differs; None where a model does not have it."""

    field: str
    before: str | None
    after: str | None


class NodeCounts(msgspec.Struct, frozen=True):
    """How many nodes there are of each fate. `renamed` ones are the same, or changed, under another name."""

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
        schema_version: The version of this form.
        before: The first file.
        after: The second file.
        same: Whether nothing differs but names and metadata.
        same_topology: Whether both have the same nodes with the same attributes, connected the same way, with weights
            of the same types and shapes.
        same_order: Whether the nodes that both have stand in the same order.
        differences: Which kinds of differences there are.
        first_difference: The first node, in the order of the first file, else of the second, that differs in topology.
        nodes: How many nodes there are of each fate.
        modules: The module calls with any node or weight, in the order of the models.
        changes: The nodes that are not the same, in order.
        tags: How many nodes carry each tag.
        weights: The weights that are not the same in both.
        contents: What comparing the contents of weights gave; None if that was not asked for.
        interface: Differences in the model's inputs and outputs.
        opsets: Differences in the operator sets and the IR version.
        metadata: Differences in who wrote the files and how.
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
    """The JSON Schema of what `modelexport compare --format json` prints."""
    return json_schema("modelexport comparison", Comparison)


def compare_models(
    before: str | Path | ModelFile,
    after: str | Path | ModelFile,
    *,
    contents: bool = False,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> Comparison:
    """Compare two ONNX files by module and structure.

    Args:
        before: The first file, or what `read_model` gave for it.
        after: The second file.
        contents: Whether to read and compare the contents of the weights.
        limits: What files are accepted.

    Raises:
        InputError: There is no such file.
        FileFormatError: One of them cannot be read as a model.
    """
    with gc_paused():
        files = [file if isinstance(file, ModelFile) else read_model(file, limits) for file in (before, after)]
        matching = Matching(outline(files[0]), outline(files[1]))
        return _Report(matching).comparison(contents)


class _Report:
    """Puts together what the parts found."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._before, self._after = matching.before, matching.after
        self._ownership = Ownership(matching)
        self._pairs = changes_of_pairs(matching)

    def comparison(self, contents: bool) -> Comparison:
        matching = self._matching
        changes = self._changes()
        pairs, weights = compare_weights(matching)
        report = compare_contents(self._before.file, self._after.file, pairs) if contents else None
        interface = _field_changes(_interface(self._before), _interface(self._after))
        opsets = _field_changes(_opsets(self._before.file), _opsets(self._after.file))
        metadata = _field_changes(_metadata(self._before.file), _metadata(self._after.file))
        fates = Counter(change.kind for change in changes)
        renamed = sum(
            b >= 0 and self._before.identities[a] != self._after.identities[b] for a, b in enumerate(matching.to_after)
        )
        topology = [c for c in changes if c.kind in ("added", "removed") or not TOPOLOGY.isdisjoint(c.what)]
        rewired = self._outputs_rewired()
        differences = {
            "topology": bool(topology) or rewired,
            "shapes": any("shape" in change.what for change in changes),
            "ownership": fates["moved"] > 0,
            "weights": bool(weights) or (report is not None and report.different > 0),
            "interface": bool(interface),
            "opsets": bool(opsets),
            "metadata": bool(metadata),
            "names": renamed > 0,
        }
        found = tuple(kind for kind, differs in differences.items() if differs)
        paired = len(matching.to_after) - matching.to_after.count(-1)
        return Comparison(
            schema_version=SCHEMA_VERSION,
            before=self._summary(self._before),
            after=self._summary(self._after),
            same=INFORMATION.issuperset(found),
            same_topology="topology" not in found,
            same_order=self._same_order(),
            differences=found,
            first_difference=topology[0] if topology else None,
            nodes=NodeCounts(
                same=paired - fates["changed"] - fates["moved"],
                changed=fates["changed"],
                added=fates["added"],
                removed=fates["removed"],
                moved=fates["moved"],
                renamed=renamed,
            ),
            modules=self._modules(changes),
            changes=tuple(changes),
            tags=self._tags(),
            weights=tuple(weights),
            contents=report,
            interface=interface,
            opsets=opsets,
            metadata=metadata,
        )

    def _same_order(self) -> bool:
        partners = [b for b in self._matching.to_after if b >= 0]
        return all(first < second for first, second in itertools.pairwise(partners))

    def _outputs_rewired(self) -> bool:
        """Whether an output of the models is made by nodes that are no pair, though both have a partner."""
        before, after = self._before, self._after
        if (len(before.graph_inputs), len(before.graph_outputs)) != (len(after.graph_inputs), len(after.graph_outputs)):
            return True
        for a, b in zip(before.graph_outputs, after.graph_outputs, strict=True):
            first, second = before.producers[a], after.producers[b]
            partner = self._matching.to_after[first] if first >= 0 else -1
            if partner != second or (second >= 0 and before.slots[a] != after.slots[b]):
                return True
            if first < 0 and before.leaves.get(a) != after.leaves.get(b):
                return True
        return False

    def _at(self, side: Outline, node: int, owner: str) -> NodeAt:
        return NodeAt(side.identities[node], node, side.label(node), owner)

    def _changes(self) -> list[NodeChange]:
        """All nodes that are not the same: those of the first model in order, each with what was added before it."""
        matching, owners = self._matching, self._ownership
        found: list[NodeChange] = []
        following = 0
        for a, b in enumerate(matching.to_after):
            if b < 0:
                at = self._at(self._before, a, owners.before[a])
                found.append(NodeChange("removed", at.module, before=at))
                continue
            while following < b:
                self._append_added(following, found)
                following += 1
            following = max(following, b + 1)
            self._append_paired(a, b, found)
        for b in range(following, len(self._after)):
            self._append_added(b, found)
        return found

    def _append_added(self, b: int, found: list[NodeChange]) -> None:
        if self._matching.to_before[b] < 0:
            at = self._at(self._after, b, self._ownership.after[b])
            found.append(NodeChange("added", at.module, after=at))

    def _append_paired(self, a: int, b: int, found: list[NodeChange]) -> None:
        change: PairChange | None = self._pairs.get(a)
        owner, now = self._ownership.before[a], self._ownership.after[b]
        if change is None and owner == now:
            return
        first, second = self._at(self._before, a, owner), self._at(self._after, b, now)
        if change is not None:
            found.append(NodeChange("changed", owner, first, second, change.what, change.detail))
        else:
            found.append(NodeChange("moved", owner, first, second, ("owner",)))

    def _summary(self, side: Outline) -> FileSummary:
        owned = [owner for owner in side.owners if owner is not None]
        return FileSummary(
            file=str(side.file.path),
            nodes=len(side),
            hierarchy=side.origin,
            missing=side.file.missing,
            unowned=len(side) - len(owned),
            calls=len(set(owned)),
            weights=weight_totals(side),
        )

    def _modules(self, changes: list[NodeChange]) -> tuple[ModuleChange, ...]:
        owners = self._ownership
        before, after = Counter(owners.before), Counter(owners.after)
        fates: dict[str, Counter[str]] = defaultdict(Counter)
        for change in changes:
            fates[change.module][change.kind] += 1
        weights_before, weights_after = owners.weights(self._before), owners.weights(self._after)
        calls = dict.fromkeys((*before, *after, *weights_before, *weights_after))
        none = (0, 0)
        return tuple(
            ModuleChange(
                module=call,
                class_name=owners.class_of(call),
                tag=owners.tag_of(call),
                nodes_before=before[call],
                nodes_after=after[call],
                same=before[call] - fates[call]["removed"] - fates[call]["changed"] - fates[call]["moved"],
                changed=fates[call]["changed"],
                added=fates[call]["added"],
                removed=fates[call]["removed"],
                moved=fates[call]["moved"],
                parameters_before=weights_before.get(call, none)[0],
                parameters_after=weights_after.get(call, none)[0],
                bytes_before=weights_before.get(call, none)[1],
                bytes_after=weights_after.get(call, none)[1],
            )
            for call in calls
        )

    def _tags(self) -> tuple[TagCount, ...]:
        owners = self._ownership
        before, after = owners.tags(self._before), owners.tags(self._after)
        return tuple(TagCount(tag, before[tag], after[tag]) for tag in dict.fromkeys((*before, *after)))


# --- fields ----------------------------------------------------------------------------------------------------


def _field_changes(before: dict[str, str], after: dict[str, str]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(field, before.get(field), after.get(field))
        for field in dict.fromkeys((*before, *after))
        if before.get(field) != after.get(field)
    )


def _interface(side: Outline) -> dict[str, str]:
    found = {}
    for what, values in (("input", side.graph_inputs), ("output", side.graph_outputs)):
        for position, value in enumerate(values):
            found[f"{what} {position}"] = f"{side.names[value]}: {type_text(side.types.get(value))}"
    return found


def _opsets(file: ModelFile) -> dict[str, str]:
    opsets = sorted((opset.domain or "ai.onnx", opset.version) for opset in file.proto.opset_import)
    return {"IR version": str(file.proto.ir_version), **{f"opset {domain}": str(v) for domain, v in opsets}}


def _metadata(file: ModelFile) -> dict[str, str]:
    proto, document = file.proto, file.document
    fields = {
        "producer": f"{_text(proto.producer_name)} {_text(proto.producer_version)}".strip(),
        "model": f"{_text(proto.domain)} {proto.model_version or ''}".strip(),
        "graph name": _text(proto.graph.name),
        "description": _text(proto.doc_string),
        **{f"metadata {_text(entry.key)}": _text(entry.value) for entry in proto.metadata_props},
    }
    if document is not None:
        fields["strategy"] = document.strategy
        fields["exporter"] = document.exporter
        fields["tag view"] = msgspec.json.encode(document.tag_view).decode()
    return {field: text for field, text in fields.items() if text}


def _text(content: str | bytes) -> str:
    """Protobuf gives text that is not UTF-8 as bytes."""
    return content.decode(errors="replace") if isinstance(content, bytes) else content
