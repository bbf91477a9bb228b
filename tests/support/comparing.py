"""Models to compare, and what holds of every comparison."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from modelexport.analysis.comparison.comparison_report import Comparison, ModuleChange
from modelexport.analysis.comparison.model_comparison import compare_models


def by_module(found: Comparison) -> dict[str, ModuleChange]:
    return {module.module: module for module in found.modules if module.differs}


def fates(found: Comparison) -> dict[tuple[str, str], Counter[str]]:
    """For each module and fate, how many nodes of each operation."""
    counted: dict[tuple[str, str], Counter[str]] = {}
    for change in found.changes:
        at = change.after if change.kind == "added" else change.before
        assert at is not None
        counted.setdefault((change.module, change.kind), Counter())[at.operation] += 1
    return counted


def consistent(found: Comparison) -> None:
    """What holds of every comparison."""
    counts = found.nodes
    assert counts.same + counts.changed + counts.moved + counts.removed == found.before.nodes
    assert counts.same + counts.changed + counts.moved + counts.added == found.after.nodes
    assert sum(module.nodes_before for module in found.modules) == found.before.nodes
    assert sum(module.nodes_after for module in found.modules) == found.after.nodes
    assert Counter(change.kind for change in found.changes) == Counter(
        {kind: n for kind in ("added", "removed", "changed", "moved") if (n := getattr(counts, kind))}
    )
    assert sum(tag.before for tag in found.tags) == found.before.nodes
    assert sum(tag.after for tag in found.tags) == found.after.nodes
    assert sum(module.bytes_after for module in found.modules) == found.after.weights.bytes
    # No node has two fates.
    for side in ("before", "after"):
        ids = [at.id for change in found.changes if (at := getattr(change, side)) is not None]
        assert len(ids) == len(set(ids))


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with another name for every node and tensor, subgraphs included; inputs and outputs keep theirs."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)} | {""}
    names: dict[str, str] = {}

    def new(name: str) -> str:
        return name if name in kept else names.setdefault(name, f"t{len(names) * 7919 % 100_003}")

    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for node in graph.node:
            node.name = f"n{id(node) % 1000}"
            node.input[:] = [new(name) for name in node.input]
            node.output[:] = [new(name) for name in node.output]
            graphs += [a.g for a in node.attribute if a.HasField("g")]
        for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            item.name = new(item.name)
    return model


def chain(*operations: str, **attributes: Any) -> onnx.ModelProto:
    """A model whose nodes follow each other."""
    nodes, value = [], "x"
    for number, operation in enumerate(operations):
        nodes.append(helper.make_node(operation, [value], [f"v{number}"], **attributes.get(operation, {})))
        value = f"v{number}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def compared(folder: Path, before: onnx.ModelProto, after: onnx.ModelProto, **options: Any) -> Comparison:
    found = compare_models(saved(before, folder / "before.onnx"), saved(after, folder / "after.onnx"), **options)
    consistent(found)
    return found


def two_branches(crossed: bool = False) -> onnx.ModelProto:
    base = chain("Relu")
    del base.graph.node[:]
    first, second = ("b", "a") if crossed else ("a", "b")
    base.graph.node.extend(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Neg", ["x"], ["b"]),
            helper.make_node("Sub", [first, second], ["v0"]),
        ]
    )
    return base
