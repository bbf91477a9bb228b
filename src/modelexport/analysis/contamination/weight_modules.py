"""The modules that each weight of a graph belongs to, including weights that an exporter merged with equal ones."""

from __future__ import annotations

from collections.abc import Sequence

from modelexport.graph import ELEMENT_TYPES, FlowGraph, TensorType
from modelexport.hierarchy import ModuleRecord


def modules_by_weight(flow: FlowGraph, modules: Sequence[ModuleRecord]) -> dict[int, tuple[str, ...]]:
    """The paths of the modules that have each recorded weight as parameter or buffer, tied parameters included."""
    found: dict[str, list[str]] = {}
    tied: dict[str, str] = {}
    for module in modules:
        for name in (*module.parameters, *module.buffers):
            for path in (module.path, *module.aliases):
                found.setdefault(f"{path}.{name}" if path else name, []).append(module.path)
        for name, other in module.tied_parameters.items():
            tied[f"{module.path}.{name}" if module.path else name] = other
    for name, other in tied.items():
        together = list(dict.fromkeys([*found.get(name, []), *found.get(other, [])]))
        found[name] = found[other] = together
    names = flow.tensor_names
    return {tensor: tuple(found[names[tensor]]) for tensor in flow.initializers if names[tensor] in found}


def modules_with_missing_weights(flow: FlowGraph, modules: Sequence[ModuleRecord]) -> dict[TensorType, set[str]]:
    """The paths of the modules with a weight whose name is not in the graph, by the type of that weight."""
    found: dict[TensorType, set[str]] = {}
    kept = {flow.tensor_names[tensor] for tensor in flow.initializers}
    for module in modules:
        for name, info in (*module.parameters.items(), *module.buffers.items()):
            names = (f"{path}.{name}" if path else name for path in (module.path, *module.aliases))
            element = ELEMENT_TYPES.get(info.dtype)
            if element is not None and kept.isdisjoint(names):
                shape = tuple(axis if isinstance(axis, int) else None for axis in info.shape)
                found.setdefault(TensorType(element, shape), set()).add(module.path)
    return found
