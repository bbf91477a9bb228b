"""How much of a model lies in each of its modules and classes: nodes, operations, parameters, kinds, calls."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from modelexport.document import HierarchyDocument, ModuleRecord, NodeRecord
from modelexport.hierarchy import TensorInfo, ancestor_paths

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
    operations: Counter[str] = dataclasses.field(default_factory=Counter)
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, other: _Share) -> None:
        self.nodes += other.nodes
        self.parameters += other.parameters
        self.parameter_bytes += other.parameter_bytes
        self.lowest = min(self.lowest, other.lowest)
        self.operations.update(other.operations)
        self.kinds.update(other.kinds)


def count_modules(
    document: HierarchyDocument,
    nodes: Iterable[NodeRecord] | None = None,
    holders: Collection[str] | None = None,
) -> list[ModuleStatistics]:
    """The statistics of every module, in the order of the module tree.

    A parameter that several modules hold (tied weights) counts with the one that comes first.

    Args:
        document: The hierarchy.
        nodes: The nodes to count; all where it is None.
        holders: The paths of the modules whose parameters count; all where it is None.
    """
    own = _own_shares(document, nodes, holders)
    calls = Counter(call.path for call in document.calls)
    total: dict[str, _Share] = {module.path: _Share() for module in document.modules}
    for path, share in own.items():
        for around in (path, *ancestor_paths(path)):
            total[around].add(share)
    return [_module_statistics(module, own[module.path], total[module.path], calls) for module in document.modules]


def _module_statistics(module: ModuleRecord, own: _Share, total: _Share, calls: Mapping[str, int]) -> ModuleStatistics:
    return ModuleStatistics(
        path=module.path,
        class_name=module.class_name,
        qualified_class=module.qualified_class,
        tag=module.tag,
        depth=module.path.count(".") + 1 if module.path else 0,
        calls=calls.get(module.path, 0),
        own_nodes=own.nodes,
        nodes=total.nodes,
        own_parameters=own.parameters,
        parameters=total.parameters,
        parameter_bytes=total.parameter_bytes,
        operations=dict(total.operations.most_common()),
        kinds=dict(total.kinds),
        lowest_confidence=None if total.lowest == math.inf else total.lowest,
    )


def count_classes(
    document: HierarchyDocument,
    nodes: Iterable[NodeRecord] | None = None,
    holders: Collection[str] | None = None,
) -> list[ClassStatistics]:
    """The statistics of every class, those with the most nodes first."""
    classes = {module.path: module.qualified_class for module in document.modules}
    names = {module.qualified_class: module.class_name for module in document.modules}
    modules = Counter(classes.values())
    calls = Counter(classes[call.path] for call in document.calls)
    total: dict[str, _Share] = {name: _Share() for name in modules}
    for path, share in _own_shares(document, nodes, holders).items():
        # A module inside of another of its class counts once.
        for name in {classes[around] for around in (path, *ancestor_paths(path))}:
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
            operations=dict(share.operations.most_common()),
            kinds=dict(share.kinds),
        )
        for name, share in total.items()
    ]
    return sorted(found, key=lambda each: (-each.nodes, -each.parameters, each.qualified_class))


def _own_shares(
    document: HierarchyDocument, nodes: Iterable[NodeRecord] | None, holders: Collection[str] | None
) -> dict[str, _Share]:
    """What belongs to each module and to none inside of it."""
    paths = {call.id: call.path for call in document.calls}
    own: dict[str, _Share] = {}
    for module in document.modules:
        share = own[module.path] = _Share()
        if holders is None or module.path in holders:
            for name, info in module.parameters.items():
                if name not in module.tied_parameters:
                    size = _size(info.shape)
                    share.parameters += size
                    share.parameter_bytes += math.ceil(size * _bits(info) / 8)
    for node in document.nodes if nodes is None else nodes:
        path = paths.get(node.module)
        if path is None:
            continue
        share = own[path]
        share.nodes += 1
        share.operations[node.op] += 1
        share.kinds[node.kind] += 1
        share.lowest = min(share.lowest, node.confidence)
    return own


def _size(shape: tuple[int | str, ...]) -> int:
    return math.prod(axis for axis in shape if isinstance(axis, int))


def _bits(info: TensorInfo) -> int:
    """The bits of an element, from the name of its type: ``float32``, ``float8_e4m3fn``, ``bool``."""
    found = _BITS.match(info.dtype.rpartition(".")[2])
    return int(found[1][:4]) if found else _BOOLEAN_BITS
