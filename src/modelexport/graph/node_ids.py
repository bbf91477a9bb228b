"""Node ids: every node of an ONNX graph under a stable id, subgraphs and local functions included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import onnx
import onnx_ir as ir

from modelexport.graph.traversal import proto_subgraph_nodes, subgraphs_of


def nodes_with_ids(model: ir.Model) -> list[tuple[str, ir.Node]]:
    """Every node of the model with its id, in order: main graph, its subgraphs, then local functions.

    A node's id is the name of its first named output, prefixed with the path to its graph:
    ``If_3/then_branch/add_7``. ONNX node names are optional and may repeat; tensor names are required and unique.
    """
    tops: list[tuple[str, Iterable[ir.Node]]] = [("", model.graph)]
    tops += [(function_prefix(*key), function) for key, function in model.functions.items()]
    return _with_ids(tops, lambda node: [value.name for value in node.outputs], subgraphs_of)


def proto_nodes_with_ids(model: onnx.ModelProto) -> list[tuple[str, onnx.NodeProto]]:
    """The same ids for a model as protobuf parses it from the file."""
    tops: list[tuple[str, Iterable[onnx.NodeProto]]] = [("", model.graph.node)]
    tops += [(function_prefix(f.domain, f.name, f.overload), f.node) for f in model.functions]
    return _with_ids(tops, lambda node: list(node.output), proto_subgraph_nodes)


def function_prefix(domain: str, name: str, overload: str) -> str:
    return "::".join(part for part in (domain, name, overload) if part) + "/"


_Node = TypeVar("_Node")


def _with_ids(
    tops: Iterable[tuple[str, Iterable[_Node]]],
    outputs_of: Callable[[_Node], list[str | None]] | Callable[[_Node], list[str]],
    inner_graphs: Callable[[_Node], Iterable[tuple[str, Iterable[_Node]]]],
) -> list[tuple[str, _Node]]:
    found: list[tuple[str, _Node]] = []
    # How often each id was requested: in an invalid file many outputs may have one name.
    uses: dict[str, int] = {}

    def unique(wanted: str) -> str:
        node_id = wanted
        while node_id in uses:
            uses[wanted] += 1
            node_id = f"{wanted}#{uses[wanted]}"
        uses[node_id] = 1
        return node_id

    def identify(prefix: str, nodes: Iterable[_Node]) -> Iterator[tuple[str, _Node]]:
        for position, node in enumerate(nodes):
            name = next((name for name in outputs_of(node) if name), f"#{position}")
            yield unique(prefix + name), node

    for top, nodes in tops:
        # A stack of iterators rather than recursion: a file may nest subgraphs deeper than Python's stack.
        stack = [identify(top, nodes)]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                continue
            found.append(following)
            node_id, node = following
            subgraphs = inner_graphs(node)
            if subgraphs:
                stack.extend(reversed([identify(f"{node_id}/{name}/", inner) for name, inner in subgraphs]))
    return found


def operation(node: ir.Node) -> str:
    """A node's operator, prefixed with its domain unless that is ONNX's own."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
