"""The TorchScript exporter's graph, watched on its way: before it is folded and fused, and when it gets its names."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import onnx
import torch

from modelexport.torch_support.private_jit import JitGraph, JitPass, as_onnx, is_graph, is_tensor, pass_through


class JitNode(NamedTuple):
    """A node of the graph: the modules it was recorded under, and its outputs."""

    scope: str
    outputs: tuple[int, ...]


@dataclasses.dataclass
class GraphWatch:
    """What was seen of one export.

    Attributes:
        before: The graph in ONNX operators, before constant folding and fusion; None if it was not seen.
        parameters: The names, in `before`, of the values that hold weights.
        nodes_before: Its nodes.
        names_before: The name of each value in `before`.
        nodes: The nodes of the final graph.
        names: The name of each value in the final graph.
        graph: The exporter's own form of `before`, or of the final graph if that was not seen.
        merged_scopes: The scopes whose nodes the tracer's graph lost to equal ones under other scopes.
    """

    before: onnx.ModelProto | None = None
    parameters: frozenset[str] = frozenset()
    nodes_before: list[JitNode] = dataclasses.field(default_factory=list)
    names_before: dict[int, str] = dataclasses.field(default_factory=dict)
    nodes: list[JitNode] = dataclasses.field(default_factory=list)
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    merged_scopes: set[str] = dataclasses.field(default_factory=set)
    graph: JitGraph | None = None

    def shapes(self) -> dict[int, tuple[tuple[int, ...], str]]:
        """Shape and type of the values of `graph` by their numbers in `nodes_before`, or in `nodes` without those."""
        numbers = self.names if self.before is None else self.names_before
        values = (value for block in blocks_of(self.graph) for value in values_of(block)) if self.graph else ()
        return {
            number: (tuple(kind.sizes()), str(kind.dtype()).removeprefix("torch."))
            # A copy has its values in the same order.
            for number, value in zip(numbers, values, strict=False)
            if value.isCompleteTensor() and (kind := value.type())
        }

    def texts(self) -> Iterator[tuple[JitNode, str]]:
        """The nodes of the graph before folding, each with how the exporter prints it."""
        blocks: list[Any] = [self.graph] if self.graph is not None else []
        while blocks:
            block = blocks.pop()
            for node in block.nodes():
                text = str(node).partition("\n")[0].partition(", scope: ")[0].partition(" # ")[0]
                yield JitNode(node.scopeName(), ()), text.strip()
                blocks.extend(node.blocks())


def outputs_of(node: Any) -> list[Any]:
    """The values that a node makes; its own iterator takes ten times as long."""
    return [node.outputsAt(index) for index in range(node.outputsSize())]


def inputs_of(node: Any) -> list[Any]:
    """The values that a node reads; its own iterator takes ten times as long."""
    return [node.inputsAt(index) for index in range(node.inputsSize())]


def given_to(block: Any) -> list[Any]:
    """The values that a graph or a block is given."""
    return outputs_of(block.param_node() if is_graph(block) else block.paramNode())


def values_of(block: Any) -> list[Any]:
    """The values that a graph or a block is given and that its nodes make, those of blocks within left out."""
    return [*given_to(block), *(value for node in block.nodes() for value in outputs_of(node))]


def blocks_of(graph: Any) -> Iterator[Any]:
    """The graph, and the blocks within its nodes."""
    yield graph
    # To ask each node takes far longer than to print them all.
    holders = _operators_with_blocks(graph.str(False))
    waiting = [graph] if holders else []
    while waiting:
        nodes = [node for node in waiting.pop().nodes() if "" in holders or node.kind() in holders]
        inner = [block for node in nodes for block in node.blocks()]
        yield from inner
        waiting.extend(inner)


_BLOCK = re.compile(r"^\s*block0\(", re.MULTILINE)
_OPERATOR = re.compile(r" = (\w+::\w+)")


def _operators_with_blocks(text: str) -> set[str]:
    """Of a printed graph, the operators of nodes with blocks; an empty name where one cannot be told."""
    found: set[str] = set()
    if "block0(" not in text:
        return found
    for block in _BLOCK.finditer(text):
        # A node's blocks are printed below it.
        start = text.rfind("\n", 0, max(0, block.start() - 1)) + 1
        operator = _OPERATOR.search(text, start, block.start())
        found.add(operator[1] if operator is not None else "")
    return found


@contextlib.contextmanager
def watch_graph(
    opset_version: int | None, put_back: Callable[[Any], Mapping[int, str]] = lambda graph: {}
) -> Iterator[GraphWatch]:
    """See the graph that the TorchScript exporter makes within the context.

    Args:
        opset_version: The version the exporter was asked for.
        put_back: Called with the final graph before it gets its names, to make its scopes those that names are made of;
            gives the scopes that nodes had instead, by the numbers of their values.
    """
    watch = GraphWatch()

    def before_folding(graph: JitGraph, parameters: dict[str, torch.Tensor], *rest: Any) -> None:
        if watch.nodes_before:
            return
        watch.nodes_before, watch.names_before = _read(graph)
        watch.before = as_onnx(graph, opset_version)
        # A copy: what follows changes the graph in place.
        watch.graph = graph.copy()
        watch.parameters = frozenset(parameters)

    def merge(original: Callable[..., Any], graph: JitGraph, *rest: Any) -> Any:
        before = graph.copy()
        changed = original(graph, *rest)
        if changed is not False:
            left = _count_scopes(graph)
            watch.merged_scopes.update(s for s, count in _count_scopes(before).items() if left[s] < count)
        return changed

    def fold(original: Callable[..., Any], graph: JitGraph, *rest: Any) -> Any:
        before_folding(graph, *rest)
        return original(graph, *rest)

    def name(original: Callable[..., Any], graph: JitGraph, *rest: Any) -> Any:
        scopes = put_back(graph)
        result = original(graph, *rest)
        nodes, watch.names = _read(graph)
        watch.nodes = [JitNode(next((scopes[n] for n in outs if n in scopes), own), outs) for own, outs in nodes]
        if watch.graph is None:
            watch.graph = graph.copy()
        return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(pass_through(JitPass.EVAL_PEEPHOLE, fold))
        stack.enter_context(pass_through(JitPass.CONSTANT_FOLD, fold))
        stack.enter_context(pass_through(JitPass.CSE, merge))
        stack.enter_context(pass_through(JitPass.ASSIGN_NAMES, name))
        yield watch


def _count_scopes(graph: JitGraph) -> Counter[str]:
    """How many nodes that compute a tensor there are under each scope."""
    return Counter(
        node.scopeName()
        for node in graph.nodes()
        if node.inputsSize() and any(is_tensor(value) for value in outputs_of(node))
    )


def _read(graph: JitGraph) -> tuple[list[JitNode], dict[int, str]]:
    nodes: list[JitNode] = []
    names: dict[int, str] = {}
    for block in blocks_of(graph):
        names.update({value.unique(): value.debugName() for value in given_to(block)})
        for node in block.nodes():
            outputs = {value.unique(): value.debugName() for value in outputs_of(node)}
            names.update(outputs)
            nodes.append(JitNode(node.scopeName(), tuple(outputs)))
    return nodes, names
