"""Attributions found by value, compared with recorded ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

import modelexport
from modelexport.capture.by_value.attribution_by_value import ValueMatch, attribute_by_value
from modelexport.capture.module_tree import read_module_tree
from modelexport.graph.node_ids import nodes_with_ids
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.torch_support.example_inputs import normalize_inputs
from tests.support import zoo


def by_usage(graph: ir.Model, example: zoo.ExampleModel) -> ValueMatch:
    args, kwargs = normalize_inputs(example.inputs, None)
    return attribute_by_value(graph, example.model, read_module_tree(example.model), args, kwargs)


def stripped(path: Path) -> ir.Model:
    return ir.from_proto(modelexport.strip_hierarchy(onnx.load(path)))


class Confusion:
    """How the owners found compare with those recorded: the same, a caller or callee of it, or unrelated."""

    def __init__(self, name: str, graph: ir.Model, usage: ValueMatch, recorded: HierarchyDocument) -> None:
        self._parents = {call.id: call.parent for call in recorded.calls}
        recorded_owners = {node.id: node.module for node in recorded.nodes}
        self.name = name
        self.counts: Counter[str] = Counter(same=0, related=0, unrelated=0)
        self.unrelated: list[str] = []
        for identity, node in nodes_with_ids(graph):
            found, truth = str(usage.attributions[node].owner), recorded_owners[identity]
            kind = self._compare(found, truth)
            if kind == "unrelated" and not node.inputs:
                # Exporters share constants: the first call is recorded, although only others may use it.
                kind = "constant"
            self.counts[kind] += 1
            if kind == "unrelated":
                self.unrelated.append(f"{identity}: {found!r}, recorded {truth!r}; {usage.attributions[node].reason}")

    def _compare(self, found: str, truth: str) -> str:
        if found == truth:
            return "same"
        return "related" if found in self._chain(truth) or truth in self._chain(found) else "unrelated"

    def _chain(self, call: str | None) -> list[str]:
        chain = []
        while call is not None:
            chain.append(call)
            call = self._parents[call]
        return chain

    @property
    def part_with_same_owner(self) -> float:
        return self.counts["same"] / self.counts.total()

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {kind}" for kind, number in self.counts.items())
        return (
            f"{self.name:20} {self.counts.total():4} nodes, {self.part_with_same_owner:6.1%} the same owner: {counts}"
        )
