"""analyze: statistics of a file by module, class and tag, and the nodes whose owner is not exact."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx

from modelexport.analysis.query.selector_eval import Selector, parse_selector
from modelexport.analysis.query.statistics import ClassStatistics, ModuleStatistics, count
from modelexport.deadline import reads_files
from modelexport.display import Summary, summarized
from modelexport.errors import InputError
from modelexport.hierarchy import HierarchyDocument, NodeRecord, json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import ModelFile, find_hierarchy, read_model, tensor_bytes

# The length of rankings such as the largest modules.
_MAX_RANKED = 10


class WeightStatistics(msgspec.Struct, frozen=True):
    """The weights in the file, summed by shape without reading them."""

    tensors: int
    bytes: int
    external: int


class TagStatistics(msgspec.Struct, frozen=True):
    """The tags of nodes: distinct ones, the most segments, those of repeated calls, and nodes by tag."""

    distinct: int
    deepest: int
    of_repeated_calls: int
    nodes: dict[str, int]


class RankedModule(msgspec.Struct, frozen=True):
    """A module in a ranking: its path, its class, and the ranked number."""

    path: str
    class_name: str
    amount: int


class Candidate(msgspec.Struct, frozen=True):
    """A call related to a node: its owner, a contributor, or a call whose results it combines (context)."""

    call: str
    tag: str
    role: Literal["owner", "contributor", "context"]


class ResolutionDetail(msgspec.Struct, frozen=True):
    """A node whose owner is not exact: the candidates, and the reason for the owner."""

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
        origin: The source of the hierarchy.
        origins: The number of nodes by source of their owner.
        missing: What that source does not contain.
        strategy: The strategy of the export.
        exporter: The exporter that wrote the graph.
        opsets: The operator sets by domain.
        selector: The selector of the counted nodes, or None.
        nodes: The number of counted nodes.
        all_nodes: The number of all nodes.
        coverage: The fraction of nodes that have an owner.
        calls: The number of calls.
        deepest: The depth of the innermost module.
        operations: Nodes by operator, the most frequent first.
        kinds: Nodes by kind of attribution.
        mean_confidence: The mean confidence of the counted nodes.
        parameters: Elements of all counted parameters.
        parameter_bytes: Their size in bytes.
        weights: The weights in the file.
        tags: The tags of the counted nodes.
        modules: Statistics by module, in the order of the tree.
        classes: Statistics by class, those with the most nodes first.
        largest: The modules with the most nodes of their own.
        heaviest: The modules with the most parameters of their own.
        most_called: The modules with the most calls, if more than one.
        most_repeated: The classes with the most modules, if more than one; the path is that of the first.
        resolution: The counted nodes that are not exact; None if not requested.
        schema_version: The version of this format.
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


@reads_files()
def analyze(
    path: str | Path,
    *,
    selector: str | None = None,
    depth: int | None = None,
    resolution: bool = False,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> AnalysisReport:
    """Count the nodes, operators and parameters of a file, by module and by class.

    The hierarchy is ours, torch's dynamo metadata, or TorchScript's scoped node names; `origin` is the one found.
    Weights are not read.

    Args:
        path: The file.
        selector: Count only selected nodes; a node belongs to its owner (docs/selectors.md).
        depth: Omit modules below this depth; their nodes count for the modules that enclose them.
        resolution: List every node whose owner is not exact, with the candidates and the reason.
        limits: The limits for reading files.

    Raises:
        InputError: The file does not exist, or the selector picks nothing.
        FileFormatError: It is not an ONNX model, or has no hierarchy.
    """
    chosen = parse_selector(selector) if selector is not None else None
    if not isinstance(depth, int | None):
        raise InputError(f"depth is a number of levels or None, not {type(depth).__name__}")
    file = read_model(path, limits)
    found = find_hierarchy(file)
    document = found.document
    nodes: Sequence[NodeRecord] = document.nodes
    if chosen is not None:
        nodes = chosen.nodes(document, contributors=False)
    modules, classes = count(document, nodes, _counted_modules(document, chosen, nodes))
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


def _counted_modules(
    document: HierarchyDocument, chosen: Selector | None, nodes: Iterable[NodeRecord]
) -> set[str] | None:
    """The modules whose parameters count: those of the selected calls, or of the owners of the selected nodes."""
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
    return tuple(RankedModule(*entry) for entry in ranked[:_MAX_RANKED])


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
    """The JSON Schema of the output of ``modelexport analyze --format json``."""
    return json_schema("modelexport analysis", AnalysisReport)
