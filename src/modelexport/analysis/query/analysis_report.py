"""What `analyze` tells of a file: totals, modules, classes, tags, and what is not exact and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx

from modelexport.analysis.query.selectors import Selector, parse
from modelexport.analysis.query.statistics import ClassStatistics, ModuleStatistics, count
from modelexport.display import Summary, summarized
from modelexport.hierarchy import HierarchyDocument, NodeRecord, json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import ModelFile, find_hierarchy, read_model, tensor_bytes

# How many modules the lists of the largest and of the most repeated have.
_LISTED = 10


class WeightStatistics(msgspec.Struct, frozen=True):
    """The weights in the file, whatever module they are of: not read, only added up from their shapes."""

    tensors: int
    bytes: int
    external: int


class TagStatistics(msgspec.Struct, frozen=True):
    """The tags that nodes have: how many different ones, how deep, of repeated calls, and nodes by tag."""

    distinct: int
    deepest: int
    of_repeated_calls: int
    nodes: dict[str, int]


class RankedModule(msgspec.Struct, frozen=True):
    """A module in a list: its path, class, and the number that put it there."""

    path: str
    class_name: str
    amount: int


class Candidate(msgspec.Struct, frozen=True):
    """A call that a node may be seen with: as its owner, as one that contributed, or as one whose results it joins."""

    call: str
    tag: str
    role: Literal["owner", "contributor", "context"]


class ResolutionDetail(msgspec.Struct, frozen=True):
    """A node whose owner is not exact: the candidates, and why it is this one."""

    node: str
    op: str
    kind: str
    confidence: float
    reason: str
    candidates: tuple[Candidate, ...]


def _summary(report: AnalysisReport) -> Summary:
    facts = {
        "file": report.file,
        "origin": report.origin,
        "nodes": report.nodes,
        "modules": len(report.modules),
        "calls": report.calls,
        "parameters": report.parameters,
        "kinds": ", ".join(f"{count} {kind}" for kind, count in report.kinds.items()),
    }
    rows = [(m.path or "(root)", m.class_name, m.nodes, m.parameters) for m in report.modules]
    return Summary(facts, ("module", "class", "nodes", "parameters"), rows)


@summarized(_summary)
class AnalysisReport(msgspec.Struct, frozen=True):
    """The analysis of one file.

    Attributes:
        file: The file.
        origin: What the hierarchy was read from.
        origins: How many nodes each origin spoke for.
        missing: What that origin does not tell.
        strategy: Where the evidence came from.
        exporter: Who made the graph.
        opsets: The operator sets by domain.
        selector: The selector that nodes were picked by, or None.
        nodes: How many nodes were counted.
        all_nodes: How many there are.
        coverage: The part of the nodes that has an owner.
        calls: How many calls there are.
        deepest: How many modules are around the innermost one.
        operations: Nodes by operation, the most frequent first.
        kinds: Nodes by kind of attribution.
        mean_confidence: Over the counted nodes.
        parameters: Elements of all parameters that were counted.
        parameter_bytes: What they take.
        weights: The weights in the file.
        tags: The tags of the counted nodes.
        modules: By module, in the order of the tree.
        classes: By class, those with the most nodes first.
        largest: The modules with most nodes of their own.
        heaviest: The modules with most parameters of their own.
        most_called: The modules that were called most often, where that is more than once.
        most_repeated: The classes with most modules, where that is more than one; the path is of the first.
        resolution: Every counted node that is not exact; None where that was not asked for.
        schema_version: The version of this form.
    """

    file: str
    origin: str
    origins: dict[str, int]
    missing: tuple[str, ...]
    strategy: str
    exporter: str
    opsets: dict[str, int]
    selector: str | None
    nodes: int
    all_nodes: int
    coverage: float
    calls: int
    deepest: int
    operations: dict[str, int]
    kinds: dict[str, int]
    mean_confidence: float
    parameters: int
    parameter_bytes: int
    weights: WeightStatistics
    tags: TagStatistics
    modules: tuple[ModuleStatistics, ...]
    classes: tuple[ClassStatistics, ...]
    largest: tuple[RankedModule, ...]
    heaviest: tuple[RankedModule, ...]
    most_called: tuple[RankedModule, ...]
    most_repeated: tuple[RankedModule, ...]
    resolution: tuple[ResolutionDetail, ...] | None = None
    schema_version: int = 1


def analyze(
    path: str | Path,
    *,
    selector: str | None = None,
    depth: int | None = None,
    resolution: bool = False,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> AnalysisReport:
    """What a model file is made of, by module and by class.

    It reads files with a hierarchy of ours, with torch's dynamo metadata or with TorchScript's scoped names, and says
    which it found. Weights are not read.

    Args:
        path: The file.
        selector: Count only the nodes this picks; a node counts for its owner (docs/selectors.md).
        depth: Leave out modules that have more modules around them; their nodes count with those around them.
        resolution: List every node whose owner is not exact, with the candidates and the reason.
        limits: How large and how deep a file is accepted.

    Raises:
        InputError: There is no such file, or the selector picks nothing.
        FileFormatError: It is not an ONNX model, or nothing in it speaks of modules.
    """
    chosen = parse(selector) if selector is not None else None
    file = read_model(path, limits)
    found = find_hierarchy(file)
    document = found.document
    nodes: Sequence[NodeRecord] = document.nodes
    if chosen is not None:
        nodes = chosen.nodes(document, contributors=False)
    modules, classes = count(document, nodes, _holders(document, chosen, nodes))
    if chosen is not None:
        modules = [module for module in modules if module.nodes or module.parameters]
        classes = [each for each in classes if each.nodes or each.parameters]
    root = modules[0] if modules else None
    return AnalysisReport(
        file=str(file.path),
        origin=found.origin,
        origins=found.origins,
        missing=(*([file.missing] if file.missing else ()), *found.missing),
        strategy=document.strategy,
        exporter=document.exporter,
        opsets={opset.domain: opset.version for opset in file.proto.opset_import},
        selector=selector,
        nodes=len(nodes),
        all_nodes=len(document.nodes),
        coverage=document.coverage,
        calls=len(document.calls),
        deepest=max((module.depth for module in modules), default=0),
        operations=root.operations if root is not None else {},
        kinds=root.kinds if root is not None else {},
        mean_confidence=math.fsum(node.confidence for node in nodes) / len(nodes) if nodes else 1.0,
        parameters=root.parameters if root is not None else 0,
        parameter_bytes=root.parameter_bytes if root is not None else 0,
        weights=_weights(file),
        tags=_tags(nodes),
        modules=tuple(module for module in modules if depth is None or module.depth <= depth),
        classes=tuple(classes),
        largest=_ranked((m.path, m.class_name, m.own_nodes) for m in modules),
        heaviest=_ranked((m.path, m.class_name, m.own_parameters) for m in modules),
        most_called=_ranked((m.path, m.class_name, m.calls if m.calls > 1 else 0) for m in modules),
        most_repeated=_repeated(modules),
        resolution=tuple(_details(document, nodes)) if resolution else None,
    )


def _holders(document: HierarchyDocument, chosen: Selector | None, nodes: Iterable[NodeRecord]) -> set[str] | None:
    """The modules whose parameters count: those a selector covers, or those the picked nodes belong to."""
    if chosen is None:
        return None
    calls = chosen.covered(document)
    if calls is None:
        calls = {node.module for node in nodes}
    return {call.path for call in document.calls if call.id in calls}


def _weights(file: ModelFile) -> WeightStatistics:
    tensors = file.proto.graph.initializer
    external = sum(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)
    return WeightStatistics(len(tensors), sum(tensor_bytes(tensor) or 0 for tensor in tensors), external)


def _tags(nodes: Iterable[NodeRecord]) -> TagStatistics:
    counts = Counter(node.tag for node in nodes)
    return TagStatistics(
        distinct=len(counts),
        deepest=max((tag.count("/") for tag in counts), default=0),
        of_repeated_calls=sum("@" in tag for tag in counts),
        nodes=dict(counts.most_common()),
    )


def _ranked(amounts: Iterable[tuple[str, str, int]]) -> tuple[RankedModule, ...]:
    ranked = sorted((entry for entry in amounts if entry[2]), key=lambda entry: -entry[2])
    return tuple(RankedModule(*entry) for entry in ranked[:_LISTED])


def _repeated(modules: Iterable[ModuleStatistics]) -> tuple[RankedModule, ...]:
    first: dict[str, ModuleStatistics] = {}
    count: Counter[str] = Counter()
    for module in modules:
        first.setdefault(module.qualified_class, module)
        count[module.qualified_class] += 1
    return _ranked((first[name].path, first[name].class_name, n) for name, n in count.items() if n > 1)


def _details(document: HierarchyDocument, nodes: Iterable[NodeRecord]) -> Iterable[ResolutionDetail]:
    tags = {call.id: call.tag for call in document.calls}
    for node in nodes:
        if node.kind == "exact":
            continue
        yield ResolutionDetail(
            node=node.id,
            op=node.op,
            kind=node.kind,
            confidence=node.confidence,
            reason=node.reason,
            candidates=(
                Candidate(node.module, node.tag, "owner"),
                *(Candidate(call, tags[call], "contributor") for call in node.contributors),
                *(Candidate(call, tags[call], "context") for call in node.context),
            ),
        )


def analysis_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport analyze --format json`` prints."""
    return json_schema("modelexport analysis", AnalysisReport)
