"""A tool that renames everything: tensors, nodes, weights, inputs and outputs, those of subgraphs included."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import onnx

from modelexport.hierarchy.document import HierarchyDocument

_SEED = 0


def rename_everything(model: onnx.ModelProto) -> dict[str, str]:
    """Rename in place; gives the old names of tensors by the new."""
    graphs = list(_graphs(model.graph))
    names = {name: None for graph in graphs for name in _names(graph)}
    numbers = list(range(len(names)))
    # No order of the names tells anything either.
    random.Random(_SEED).shuffle(numbers)
    new = {name: f"r{number}" for name, number in zip(names, numbers, strict=True)}
    for graph in graphs:
        graph.name = "r"
        del graph.value_info[:]
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = new[value.name]
        for node in graph.node:
            node.name = ""
            node.doc_string = ""
            del node.metadata_props[:]
            for place, name in enumerate(node.input):
                node.input[place] = new[name] if name else ""
            for place, name in enumerate(node.output):
                node.output[place] = new[name] if name else ""
    return {name: old for old, name in new.items()}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(subgraph)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (name for name in (*node.input, *node.output) if name)
    yield from (value.name for value in graph.output)


def rename_file(source: Path, target: Path) -> dict[str, str]:
    """Write a file with other names; gives the old names of tensors by the new."""
    model = onnx.load(source)
    old = rename_everything(model)
    onnx.save(model, target)
    return old


def with_old_names(document: HierarchyDocument, old: dict[str, str]) -> HierarchyDocument:
    """The document of a renamed file, its nodes known by their old names again."""
    nodes = tuple(
        msgspec.structs.replace(node, id="/".join(old.get(part, part) for part in node.id.split("/")))
        for node in document.nodes
    )
    return msgspec.structs.replace(document, nodes=nodes)
