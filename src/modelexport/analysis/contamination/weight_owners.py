"""Which modules hold the weights of a graph, also those that an exporter merged with equal ones."""

from __future__ import annotations

from collections.abc import Sequence

from modelexport.analysis.contamination.call_index import ELEMENTS
from modelexport.graph import FlowGraph, TensorType
from modelexport.hierarchy import ModuleRecord


def weight_holders(flow: FlowGraph, modules: Sequence[ModuleRecord]) -> dict[int, tuple[str, ...]]:
    """For each weight that the document knows, the modules that hold it: its own, and those it is tied to."""
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
    return {tensor: tuple(found[flow.names[tensor]]) for tensor in flow.weights if flow.names[tensor] in found}


def lost_weights(flow: FlowGraph, modules: Sequence[ModuleRecord]) -> dict[TensorType, set[str]]:
    """The modules with a weight that the graph has under no name of its own, by the type of that weight."""
    found: dict[TensorType, set[str]] = {}
    kept = {flow.names[tensor] for tensor in flow.weights}
    for module in modules:
        for name, info in (*module.parameters.items(), *module.buffers.items()):
            names = (f"{path}.{name}" if path else name for path in (module.path, *module.aliases))
            element = ELEMENTS.get(info.dtype)
            if element is not None and kept.isdisjoint(names):
                shape = tuple(axis if isinstance(axis, int) else None for axis in info.shape)
                found.setdefault(TensorType(element, shape), set()).add(module.path)
    return found
