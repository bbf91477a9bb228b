"""Compare two models: nodes by module, tags, weights, interface and metadata."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from modelexport.analysis.comparison.comparison_report import (
    SCHEMA_VERSION,
    Comparison,
    FieldChange,
    FileSummary,
    ModuleChange,
    NodeAt,
    NodeChange,
    NodeCounts,
    TagCount,
)
from modelexport.analysis.comparison.model_index import ModelIndex
from modelexport.analysis.comparison.node_changes import TOPOLOGY, changed_pairs, text_of, type_text
from modelexport.analysis.comparison.node_matching import NodeMatching
from modelexport.analysis.comparison.node_owners import NodeOwners
from modelexport.analysis.comparison.weight_changes import (
    compare_contents,
    compare_weights,
    weight_totals,
)
from modelexport.deadline import reads_files
from modelexport.gc_pause import gc_paused
from modelexport.hierarchy import CallId
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import ModelFile, read_model

# Differences of these kinds do not make two models different.
_IGNORED_DIFFERENCES = frozenset({"names", "metadata"})


@reads_files(2)
def compare_models(
    before: str | Path | ModelFile,
    after: str | Path | ModelFile,
    *,
    contents: bool = False,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> Comparison:
    """Compare two ONNX files by module and structure.

    Args:
        before: The first file, or the result of `read_model`.
        after: The second file.
        contents: Whether to read and compare the contents of the weights.
        limits: The limits for reading files.

    Raises:
        InputError: A file does not exist.
        FileFormatError: A file is not an ONNX model.
    """
    with gc_paused():
        files = [file if isinstance(file, ModelFile) else read_model(file, limits) for file in (before, after)]
        matching = NodeMatching(ModelIndex(files[0]), ModelIndex(files[1]))
        return _Comparer(matching).comparison(contents)


class _Comparer:
    """Builds the report from matched nodes, owners and weights."""

    def __init__(self, matching: NodeMatching) -> None:
        self._matching = matching
        self._before, self._after = matching.before, matching.after
        self._ownership = NodeOwners(matching)
        self._pairs = changed_pairs(matching)

    def comparison(self, contents: bool) -> Comparison:
        matching = self._matching
        changes = list(self._changes())
        pairs, weights = compare_weights(matching)
        report = compare_contents(self._before.file, self._after.file, pairs) if contents else None
        interface = _field_changes(_interface(self._before), _interface(self._after))
        opsets = _field_changes(_opsets(self._before.file), _opsets(self._after.file))
        metadata = _field_changes(_metadata(self._before.file), _metadata(self._after.file))
        tags = self._ownership.tags(self._before), self._ownership.tags(self._after)
        counts = Counter(change.kind for change in changes)
        renamed = sum(
            b >= 0 and self._before.node_ids[a] != self._after.node_ids[b] for a, b in enumerate(matching.to_after)
        )
        topology = [c for c in changes if c.kind in ("added", "removed") or not TOPOLOGY.isdisjoint(c.what)]
        rewired = self._outputs_rewired()
        differences = {
            "topology": bool(topology) or rewired,
            "shapes": any("shape" in change.what for change in changes),
            "ownership": counts["moved"] > 0,
            "weights": bool(weights) or (report is not None and report.different > 0),
            "interface": bool(interface),
            "opsets": bool(opsets),
            "metadata": bool(metadata),
            "names": renamed > 0,
        }
        found = tuple(kind for kind, differs in differences.items() if differs)
        matches = [b for b in matching.to_after if b >= 0]
        return Comparison(
            schema_version=SCHEMA_VERSION,
            before=self._summary(self._before),
            after=self._summary(self._after),
            same=_IGNORED_DIFFERENCES.issuperset(found),
            same_topology="topology" not in found,
            same_order=all(first < second for first, second in itertools.pairwise(matches)),
            differences=found,
            first_difference=topology[0] if topology else None,
            nodes=NodeCounts(
                same=len(matches) - counts["changed"] - counts["moved"],
                **{kind: counts[kind] for kind in ("changed", "added", "removed", "moved")},
                renamed=renamed,
            ),
            modules=self._modules(changes),
            changes=tuple(changes),
            tags=tuple(TagCount(tag, tags[0][tag], tags[1][tag]) for tag in dict.fromkeys((*tags[0], *tags[1]))),
            weights=tuple(weights),
            contents=report,
            interface=interface,
            opsets=opsets,
            metadata=metadata,
        )

    def _outputs_rewired(self) -> bool:
        """Whether the models differ in the number of inputs or outputs, or in the producer of an output."""
        before, after = self._before, self._after
        if (len(before.graph_inputs), len(before.graph_outputs)) != (len(after.graph_inputs), len(after.graph_outputs)):
            return True
        for a, b in zip(before.graph_outputs, after.graph_outputs, strict=True):
            first, second = before.producers[a], after.producers[b]
            match = self._matching.to_after[first] if first >= 0 else -1
            if match != second or (second >= 0 and before.output_indexes[a] != after.output_indexes[b]):
                return True
            if first < 0 and before.sources.get(a) != after.sources.get(b):
                return True
        return False

    def _at(self, side: ModelIndex, node: int, owner: str) -> NodeAt:
        return NodeAt(side.node_ids[node], node, side.label(node), owner)

    def _changes(self) -> Iterator[NodeChange]:
        """The nodes that differ, in the order of the first model; added nodes come before the next matched one."""
        following = 0
        for a, b in enumerate(self._matching.to_after):
            first = self._at(self._before, a, self._ownership.before[a])
            if b < 0:
                yield NodeChange("removed", first.module, before=first)
                continue
            yield from self._added(range(following, b))
            following = max(following, b + 1)
            second = self._at(self._after, b, self._ownership.after[b])
            differs = self._pairs.get(a)
            if differs is not None:
                detail = "; ".join(text for text in differs.values() if text)
                yield NodeChange("changed", first.module, first, second, tuple(differs), detail)
            elif first.module != second.module:
                yield NodeChange("moved", first.module, first, second, ("owner",))
        yield from self._added(range(following, len(self._after)))

    def _added(self, nodes: Iterable[int]) -> Iterator[NodeChange]:
        for b in nodes:
            if self._matching.to_before[b] < 0:
                at = self._at(self._after, b, self._ownership.after[b])
                yield NodeChange("added", at.module, after=at)

    def _summary(self, side: ModelIndex) -> FileSummary:
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
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for change in changes:
            counts[change.module][change.kind] += 1
        weights_before, weights_after = owners.weights(self._before), owners.weights(self._after)
        calls = dict.fromkeys((*before, *after, *weights_before, *weights_after))
        none = (0, 0)
        return tuple(
            ModuleChange(
                module=call,
                class_name=owners.classes.get(CallId.parse(call).path, ""),
                tag=owners.call_tags.get(call, ""),
                nodes_before=before[call],
                nodes_after=after[call],
                same=before[call] - counts[call]["removed"] - counts[call]["changed"] - counts[call]["moved"],
                **{kind: counts[call][kind] for kind in ("changed", "added", "removed", "moved")},
                parameters_before=weights_before.get(call, none)[0],
                parameters_after=weights_after.get(call, none)[0],
                bytes_before=weights_before.get(call, none)[1],
                bytes_after=weights_after.get(call, none)[1],
            )
            for call in calls
        )


def _field_changes(before: dict[str, str], after: dict[str, str]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(field, before.get(field), after.get(field))
        for field in dict.fromkeys((*before, *after))
        if before.get(field) != after.get(field)
    )


def _interface(side: ModelIndex) -> dict[str, str]:
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
        "producer": f"{text_of(proto.producer_name)} {text_of(proto.producer_version)}".strip(),
        "model": f"{text_of(proto.domain)} {proto.model_version or ''}".strip(),
        "graph name": text_of(proto.graph.name),
        "description": text_of(proto.doc_string),
        **{f"metadata {text_of(entry.key)}": text_of(entry.value) for entry in proto.metadata_props},
    }
    if document is not None:
        fields["strategy"] = document.strategy
        fields["exporter"] = document.exporter
        fields["tag view"] = msgspec.json.encode(document.tag_view).decode()
    return {field: text for field, text in fields.items() if text}
