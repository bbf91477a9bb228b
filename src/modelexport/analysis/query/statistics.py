"""Statistics by module and by class: nodes, operators, parameters, kinds of attribution, calls."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from modelexport.hierarchy import HierarchyDocument, NodeRecord, SizeRange, json_schema, parent_path

_BITS = re.compile(r"[a-z]+?(\d+)")
_BOOLEAN_BITS = 8


class ModuleStatistics(msgspec.Struct, frozen=True):
    """The statistics of one module.

    Attributes:
        path: Its canonical path.
        class_name: Its class.
        qualified_class: The class with the Python module that defines it.
        tag: Its tag.
        depth: The number of modules that enclose it.
        calls: The number of its calls.
        own_nodes: Nodes that its calls own, without those of its submodules.
        nodes: Nodes of it and its submodules.
        own_parameters: Elements of its own parameters.
        parameters: Elements of the parameters of it and its submodules. A tied parameter counts for its first module.
        parameter_bytes: Their size in bytes.
        operations: Nodes by operator, the most frequent first.
        kinds: Nodes by kind of attribution.
        lowest_confidence: The lowest confidence of a node; None without nodes.
    """

    path: str
    class_name: str
    qualified_class: str
    tag: str
    depth: int
    calls: int
    own_nodes: int
    nodes: int
    own_parameters: int
    parameters: int
    parameter_bytes: int
    operations: dict[str, int]
    kinds: dict[str, int]
    lowest_confidence: float | None


class ClassStatistics(msgspec.Struct, frozen=True):
    """The statistics of all modules of one class, submodules included; a node counts once for each class."""

    class_name: str
    qualified_class: str
    modules: int
    calls: int
    nodes: int
    parameters: int
    parameter_bytes: int
    operations: dict[str, int]
    kinds: dict[str, int]


class PrintedTree(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a module tree.

    Attributes:
        schema_version: The version of this format.
        file: The file.
        origin: The source of the hierarchy.
        strategy: The strategy of the export.
        coverage: The fraction of nodes that have an owner.
        kinds: Nodes by kind of attribution.
        modules: The modules, parents before their children.
        tags: Nodes by tag.
        size_ranges: The sizes of dynamic axes for which the file is valid.
    """

    schema_version: int = 1
    file: str
    origin: str
    strategy: str
    coverage: float
    kinds: dict[str, int]
    modules: tuple[ModuleStatistics, ...]
    tags: dict[str, int]
    size_ranges: dict[str, SizeRange]


def tree_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport tree --format json``."""
    return json_schema("modelexport tree", PrintedTree)


@dataclasses.dataclass(slots=True)
class _Counts:
    """Numbers that can be added."""

    nodes: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    lowest: float = math.inf
    # Not Counter, which is several times slower: a large model has thousands of modules.
    operations: dict[str, int] = dataclasses.field(default_factory=dict)
    kinds: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, other: _Counts) -> None:
        self.nodes += other.nodes
        self.parameters += other.parameters
        self.parameter_bytes += other.parameter_bytes
        self.lowest = min(self.lowest, other.lowest)
        for mine, others in ((self.operations, other.operations), (self.kinds, other.kinds)):
            for name, amount in others.items():
                mine[name] = mine.get(name, 0) + amount


def count_modules(document: HierarchyDocument) -> list[ModuleStatistics]:
    """The statistics of every module, in the order of the module tree."""
    return count(document)[0]


def count(
    document: HierarchyDocument,
    nodes: Iterable[NodeRecord] | None = None,
    parameter_modules: Collection[str] | None = None,
) -> tuple[list[ModuleStatistics], list[ClassStatistics]]:
    """The statistics of every module in the order of the tree, and of every class, those with the most nodes first.

    A tied parameter counts for its first module.

    Args:
        nodes: The nodes to count; None counts all.
        parameter_modules: The paths of the modules whose parameters count; None counts all.
    """
    own = _own_counts(document, nodes, parameter_modules)
    return _by_module(document, own), _by_class(document, own)


def _by_module(document: HierarchyDocument, own: Mapping[str, _Counts]) -> list[ModuleStatistics]:
    calls = Counter(call.path for call in document.calls)
    total: dict[str, _Counts] = {module.path: _Counts() for module in document.modules}
    # From the innermost outwards: each module is added to its parent.
    for path in sorted(total, key=_depth, reverse=True):
        total[path].add(own[path])
        around = parent_path(path)
        if around is not None:
            total[around].add(total[path])
    return [
        ModuleStatistics(
            path=module.path,
            class_name=module.class_name,
            qualified_class=module.qualified_class,
            tag=module.tag,
            depth=_depth(module.path),
            calls=calls[module.path],
            own_nodes=own[module.path].nodes,
            nodes=counts.nodes,
            own_parameters=own[module.path].parameters,
            parameters=counts.parameters,
            parameter_bytes=counts.parameter_bytes,
            operations=_by_frequency(counts.operations),
            kinds=counts.kinds,
            lowest_confidence=None if counts.lowest == math.inf else counts.lowest,
        )
        for module in document.modules
        for counts in (total[module.path],)
    ]


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _by_frequency(amounts: dict[str, int]) -> dict[str, int]:
    if len(amounts) < 2:
        return amounts
    return dict(sorted(amounts.items(), key=lambda item: -item[1]))


def _by_class(document: HierarchyDocument, own: Mapping[str, _Counts]) -> list[ClassStatistics]:
    classes = {module.path: module.qualified_class for module in document.modules}
    names = {module.qualified_class: module.class_name for module in document.modules}
    modules = Counter(classes.values())
    calls = Counter(classes[call.path] for call in document.calls)
    # Modules with the same enclosing classes are summed first; a class that occurs twice counts once.
    around: dict[str, frozenset[str]] = {}
    groups: dict[frozenset[str], _Counts] = {}
    for path in sorted(classes, key=_depth):
        above = parent_path(path)
        around[path] = (around[above] if above is not None else frozenset()) | {classes[path]}
        groups.setdefault(around[path], _Counts()).add(own[path])
    total: dict[str, _Counts] = {name: _Counts() for name in modules}
    for group, counts in groups.items():
        for name in group:
            total[name].add(counts)
    found = [
        ClassStatistics(
            class_name=names[name],
            qualified_class=name,
            modules=modules[name],
            calls=calls[name],
            nodes=counts.nodes,
            parameters=counts.parameters,
            parameter_bytes=counts.parameter_bytes,
            operations=_by_frequency(counts.operations),
            kinds=counts.kinds,
        )
        for name, counts in total.items()
    ]
    return sorted(found, key=lambda each: (-each.nodes, -each.parameters, each.qualified_class))


def _own_counts(
    document: HierarchyDocument, nodes: Iterable[NodeRecord] | None, parameter_modules: Collection[str] | None
) -> dict[str, _Counts]:
    """The counts of each module without its submodules."""
    own: dict[str, _Counts] = {}
    for module in document.modules:
        counts = own[module.path] = _Counts()
        if parameter_modules is None or module.path in parameter_modules:
            for name, info in module.parameters.items():
                if name not in module.tied_parameters:
                    size = math.prod(axis for axis in info.shape if isinstance(axis, int))
                    counts.parameters += size
                    counts.parameter_bytes += -(-size * _bits(info.dtype) // 8)
    counts_by_call = {call.id: own[call.path] for call in document.calls}
    for node in document.nodes if nodes is None else nodes:
        found = counts_by_call.get(node.module)
        if found is not None:
            found.nodes += 1
            found.operations[node.op] = found.operations.get(node.op, 0) + 1
            found.kinds[node.kind] = found.kinds.get(node.kind, 0) + 1
            found.lowest = min(found.lowest, node.confidence)
    return own


@functools.lru_cache(maxsize=256)
def _bits(dtype: str) -> int:
    """The bits of an element, by the name of its type: ``float32``, ``float8_e4m3fn``, ``bool``."""
    found = _BITS.match(dtype.rpartition(".")[2])
    return int(found[1][:4]) if found else _BOOLEAN_BITS
