"""How much of a model lies in each of its modules and classes: nodes, operations, parameters, kinds, calls."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from modelexport.hierarchy import HierarchyDocument, ModuleRecord, NodeRecord, TensorInfo, parent_path

_BITS = re.compile(r"[a-z]+?(\d+)")
_BOOLEAN_BITS = 8


class ModuleStatistics(msgspec.Struct, frozen=True):
    """The share of one module.

    Attributes:
        path: Its canonical path.
        class_name: Its class.
        qualified_class: The class with the Python module that defines it.
        tag: Its tag.
        depth: How many modules are around it.
        calls: How often it was called.
        own_nodes: Nodes that belong to its calls and to no module inside of it.
        nodes: The same with all modules inside of it, and so for what follows.
        own_parameters: Elements of its own parameters.
        parameters: With those inside. A parameter that several modules hold counts with the first.
        parameter_bytes: What they take.
        operations: Nodes by operation, the most frequent first.
        kinds: Nodes by kind of attribution.
        lowest_confidence: The least certain attribution; None without nodes.
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
    """The share of all modules of one class, with everything inside of them; a node counts once for each class."""

    class_name: str
    qualified_class: str
    modules: int
    calls: int
    nodes: int
    parameters: int
    parameter_bytes: int
    operations: dict[str, int]
    kinds: dict[str, int]


@dataclasses.dataclass(slots=True)
class _Share:
    """What adds up."""

    nodes: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    lowest: float = math.inf
    # Not counters, which take several times as long: there is one for each module of a large model.
    operations: dict[str, int] = dataclasses.field(default_factory=dict)
    kinds: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, other: _Share) -> None:
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
    holders: Collection[str] | None = None,
) -> tuple[list[ModuleStatistics], list[ClassStatistics]]:
    """The statistics of every module in the order of the tree, and of every class, those with the most nodes first.

    A parameter that several modules hold (tied weights) counts with the one that comes first.

    Args:
        document: The hierarchy.
        nodes: The nodes to count; all where it is None.
        holders: The paths of the modules whose parameters count; all where it is None.
    """
    own = _own_shares(document, nodes, holders)
    return _by_module(document, own), _by_class(document, own)


def _by_module(document: HierarchyDocument, own: Mapping[str, _Share]) -> list[ModuleStatistics]:
    calls = Counter(call.path for call in document.calls)
    total: dict[str, _Share] = {module.path: _Share() for module in document.modules}
    # From the innermost outwards: each module hands on to the one around it.
    for path in sorted(total, key=_depth, reverse=True):
        total[path].add(own[path])
        around = parent_path(path)
        if around is not None:
            total[around].add(total[path])
    return [_module_statistics(module, own[module.path], total[module.path], calls) for module in document.modules]


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _module_statistics(module: ModuleRecord, own: _Share, total: _Share, calls: Mapping[str, int]) -> ModuleStatistics:
    return ModuleStatistics(
        path=module.path,
        class_name=module.class_name,
        qualified_class=module.qualified_class,
        tag=module.tag,
        depth=_depth(module.path),
        calls=calls.get(module.path, 0),
        own_nodes=own.nodes,
        nodes=total.nodes,
        own_parameters=own.parameters,
        parameters=total.parameters,
        parameter_bytes=total.parameter_bytes,
        operations=_most_first(total.operations),
        kinds=total.kinds,
        lowest_confidence=None if total.lowest == math.inf else total.lowest,
    )


def _most_first(amounts: dict[str, int]) -> dict[str, int]:
    if len(amounts) < 2:
        return amounts
    return dict(sorted(amounts.items(), key=lambda item: -item[1]))


def _by_class(document: HierarchyDocument, own: Mapping[str, _Share]) -> list[ClassStatistics]:
    classes = {module.path: module.qualified_class for module in document.modules}
    names = {module.qualified_class: module.class_name for module in document.modules}
    modules = Counter(classes.values())
    calls = Counter(classes[call.path] for call in document.calls)
    # Modules with the same classes around them are added up first; a class that is there twice counts once.
    around: dict[str, frozenset[str]] = {}
    groups: dict[frozenset[str], _Share] = {}
    for path in sorted(classes, key=_depth):
        above = parent_path(path)
        around[path] = (around[above] if above is not None else frozenset()) | {classes[path]}
        groups.setdefault(around[path], _Share()).add(own[path])
    total: dict[str, _Share] = {name: _Share() for name in modules}
    for group, share in groups.items():
        for name in group:
            total[name].add(share)
    found = [
        ClassStatistics(
            class_name=names[name],
            qualified_class=name,
            modules=modules[name],
            calls=calls[name],
            nodes=share.nodes,
            parameters=share.parameters,
            parameter_bytes=share.parameter_bytes,
            operations=_most_first(share.operations),
            kinds=share.kinds,
        )
        for name, share in total.items()
    ]
    return sorted(found, key=lambda each: (-each.nodes, -each.parameters, each.qualified_class))


def _own_shares(
    document: HierarchyDocument, nodes: Iterable[NodeRecord] | None, holders: Collection[str] | None
) -> dict[str, _Share]:
    """What belongs to each module and to none inside of it."""
    own: dict[str, _Share] = {}
    for module in document.modules:
        share = own[module.path] = _Share()
        if holders is None or module.path in holders:
            for name, info in module.parameters.items():
                if name not in module.tied_parameters:
                    size = _size(info.shape)
                    share.parameters += size
                    share.parameter_bytes += math.ceil(size * _bits(info) / 8)
    shares = {call.id: own[call.path] for call in document.calls}
    for node in document.nodes if nodes is None else nodes:
        found = shares.get(node.module)
        if found is not None:
            found.nodes += 1
            found.operations[node.op] = found.operations.get(node.op, 0) + 1
            found.kinds[node.kind] = found.kinds.get(node.kind, 0) + 1
            found.lowest = min(found.lowest, node.confidence)
    return own


def _size(shape: tuple[int | str, ...]) -> int:
    return math.prod(axis for axis in shape if isinstance(axis, int))


def _bits(info: TensorInfo) -> int:
    """The bits of an element, from the name of its type: ``float32``, ``float8_e4m3fn``, ``bool``."""
    return _bits_of(info.dtype)


@functools.lru_cache(maxsize=256)
def _bits_of(dtype: str) -> int:
    found = _BITS.match(dtype.rpartition(".")[2])
    return int(found[1][:4]) if found else _BOOLEAN_BITS
