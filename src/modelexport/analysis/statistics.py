"""How much of a model lies in each of its modules: nodes, parameters, calls."""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from modelexport.document import HierarchyDocument
from modelexport.hierarchy import ancestor_paths


class ModuleStatistics(msgspec.Struct, frozen=True):
    """The share of one module: `own_nodes` are its own, `nodes` and `parameters` include its children's."""

    path: str
    class_name: str
    tag: str
    calls: int
    own_nodes: int
    nodes: int
    parameters: int


def count_modules(document: HierarchyDocument) -> list[ModuleStatistics]:
    """The statistics of every module, in the order of the module tree.

    A parameter that several modules hold (tied weights) counts with the one that comes first.
    """
    paths = {call.id: call.path for call in document.calls}
    own_nodes = Counter(paths[node.module] for node in document.nodes if node.module in paths)
    calls = Counter(call.path for call in document.calls)
    nodes: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    for module in document.modules:
        own = sum(_size(t.shape) for name, t in module.parameters.items() if name not in module.tied_parameters)
        for path in (module.path, *ancestor_paths(module.path)):
            nodes[path] += own_nodes[module.path]
            parameters[path] += own
    return [
        ModuleStatistics(
            path=module.path,
            class_name=module.class_name,
            tag=module.tag,
            calls=calls[module.path],
            own_nodes=own_nodes[module.path],
            nodes=nodes[module.path],
            parameters=parameters[module.path],
        )
        for module in document.modules
    ]


def _size(shape: tuple[int | str, ...]) -> int:
    return math.prod(axis for axis in shape if isinstance(axis, int))
