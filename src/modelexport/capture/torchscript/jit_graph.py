"""The graph of the TorchScript exporter, before constant folding and fusion and with its final names."""

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

# Constants with more elements are not compared.
LARGEST_COMPARED = 64


class JitNode(NamedTuple):
    """A node of the graph: its scope, and the numbers of its outputs."""

    scope: str
    outputs: tuple[int, ...]


@dataclasses.dataclass
class GraphWatch:
    """The graphs of one export.

    Attributes:
        original: The graph in ONNX operators before constant folding and fusion; None if it was not seen.
        parameters: The names of the weights in `original`.
        original_nodes: The nodes of `original`.
        original_names: The name of each value in `original`.
        nodes: The nodes of the final graph.
        names: The name of each value in the final graph.
        graph: The exporter's own form of `original`, or of the final graph where `original` was not seen.
        merged_scopes: The scopes that lost nodes because equal nodes of other scopes replaced them.
        merged_constants: The scopes that lost constants in the same way, by the key of the constant.
    """

    original: onnx.ModelProto | None = None
    parameters: frozenset[str] = frozenset()
    original_nodes: list[JitNode] = dataclasses.field(default_factory=list)
    original_names: dict[int, str] = dataclasses.field(default_factory=dict)
    nodes: list[JitNode] = dataclasses.field(default_factory=list)
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    merged_scopes: set[str] = dataclasses.field(default_factory=set)
    merged_constants: dict[object, set[str]] = dataclasses.field(default_factory=dict)
    graph: JitGraph | None = None

    def shapes(self) -> dict[int, tuple[tuple[int, ...], str]]:
        """Return shape and type of the values of `graph` by their numbers in the graph it was copied from."""
        numbers = self.names if self.original is None else self.original_names
        values = (value for block in blocks_of(self.graph) for value in values_of(block)) if self.graph else ()
        return {
            number: (tuple(kind.sizes()), str(kind.dtype()).removeprefix("torch."))
            # `graph` is a copy, with its values in the same order.
            for number, value in zip(numbers, values, strict=False)
            if value.isCompleteTensor() and (kind := value.type())
        }

    def texts(self) -> Iterator[tuple[JitNode, str]]:
        """Yield the nodes of `graph`, each with its text as the exporter prints it."""
        blocks: list[Any] = [self.graph] if self.graph is not None else []
        while blocks:
            block = blocks.pop()
            for node in block.nodes():
                text = str(node).partition("\n")[0].partition(", scope: ")[0].partition(" # ")[0]
                yield JitNode(node.scopeName(), ()), text.strip()
                blocks.extend(node.blocks())


def outputs_of(node: Any) -> list[Any]:
    """Return the outputs of a node; its own iterator takes ten times as long."""
    return [node.outputsAt(index) for index in range(node.outputsSize())]


def inputs_of(node: Any) -> list[Any]:
    """Return the inputs of a node; its own iterator takes ten times as long."""
    return [node.inputsAt(index) for index in range(node.inputsSize())]


def operation_of(node: Any) -> object:
    """Return the operator of a node with its attributes: equal for nodes that do the same on any inputs."""
    attributes = tuple((name, str(getattr(node, node.kindOf(name))(name))) for name in node.attributeNames())
    return (node.kind(), attributes)


def constant_key(content: Any) -> object:
    """Return what identifies a constant by its value; None for a large one, and for what is not a constant.

    The exporter changes the types of constants, so that only their values are compared.
    """
    if isinstance(content, int | float):
        content = torch.tensor(content)
    if not isinstance(content, torch.Tensor):
        return None if content is None else str(content)
    if content.numel() > LARGEST_COMPARED or content.is_complex():
        return None
    return (tuple(content.shape), str(content.float().tolist()))


def block_inputs(block: Any) -> list[Any]:
    """Return the inputs of a graph or a block."""
    return outputs_of(block.param_node() if is_graph(block) else block.paramNode())


def values_of(block: Any) -> list[Any]:
    """Return the inputs of a graph or a block and the outputs of its nodes, without those of nested blocks."""
    return [*block_inputs(block), *(value for node in block.nodes() for value in outputs_of(node))]


def blocks_of(graph: Any) -> Iterator[Any]:
    """Yield the graph, and the blocks of its nodes."""
    yield graph
    # Printing the graph is far faster than asking each node for its blocks.
    operators = _operators_with_blocks(graph.str(False))
    pending = [graph] if operators else []
    while pending:
        nodes = [node for node in pending.pop().nodes() if "" in operators or node.kind() in operators]
        inner = [block for node in nodes for block in node.blocks()]
        yield from inner
        pending.extend(inner)


_BLOCK = re.compile(r"^\s*block0\(", re.MULTILINE)
_OPERATOR = re.compile(r" = (\w+::\w+)")


def _operators_with_blocks(text: str) -> set[str]:
    """Return the operators of nodes with blocks in a printed graph; an empty name where one cannot be parsed."""
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
    opset_version: int | None,
    restore_scopes: Callable[[Any], Mapping[int, str]] = lambda graph: {},
    *,
    folds: bool = True,
    fuses: bool = True,
) -> Iterator[GraphWatch]:
    """Record the graphs of the export that this thread runs within the context; other threads are not recorded.

    Args:
        opset_version: The opset version of the export.
        restore_scopes: Called with the final graph before the exporter names its nodes and values by their scopes.
            Restores the exporter's own scopes, and returns the scopes that it replaced, by the numbers of the outputs.
        folds: Whether the exporter folds constants.
        fuses: Whether it fuses nodes before that.
    """
    watch = GraphWatch()

    def fold(run_pass: Callable[..., Any], graph: JitGraph, parameters: dict[str, torch.Tensor], *rest: Any) -> Any:
        if not watch.original_nodes:
            watch.original_nodes, watch.original_names = _read(graph)
            watch.original = as_onnx(graph, opset_version)
            # A copy: the following passes modify the graph in place.
            watch.graph = graph.copy()
            watch.parameters = frozenset(parameters)
        return run_pass(graph, parameters, *rest)

    def merge(run_pass: Callable[..., Any], graph: JitGraph, *rest: Any) -> Any:
        before = graph.copy()
        changed = run_pass(graph, *rest)
        if changed is not False:
            for scope, key in _count_scopes(before) - _count_scopes(graph):
                (watch.merged_scopes if key is None else watch.merged_constants.setdefault(key, set())).add(scope)
        return changed

    def assign_names(run_pass: Callable[..., Any], graph: JitGraph, *rest: Any) -> Any:
        scopes = restore_scopes(graph)
        result = run_pass(graph, *rest)
        nodes, watch.names = _read(graph)
        watch.nodes = [JitNode(next((scopes[n] for n in outs if n in scopes), own), outs) for own, outs in nodes]
        if watch.graph is None:
            watch.graph = graph.copy()
        return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(pass_through(JitPass.EVAL_PEEPHOLE, fold, required=fuses))
        stack.enter_context(pass_through(JitPass.CONSTANT_FOLD, fold, required=folds))
        stack.enter_context(pass_through(JitPass.CSE, merge))
        stack.enter_context(pass_through(JitPass.ASSIGN_NAMES, assign_names))
        yield watch


def _count_scopes(graph: JitGraph) -> Counter[tuple[str, object]]:
    """Return the number of nodes that compute a tensor, and of constants with the same key, by scope."""
    found: Counter[tuple[str, object]] = Counter()
    for node in graph.nodes():
        if node.inputsSize():
            if any(is_tensor(value) for value in outputs_of(node)):
                found[node.scopeName(), None] += 1
        elif node.outputsSize() == 1 and (key := constant_key(node.output().toIValue())) is not None:
            found[node.scopeName(), key] += 1
    return found


def _read(graph: JitGraph) -> tuple[list[JitNode], dict[int, str]]:
    nodes: list[JitNode] = []
    names: dict[int, str] = {}
    for block in blocks_of(graph):
        names.update({value.unique(): value.debugName() for value in block_inputs(block)})
        for node in block.nodes():
            outputs = {value.unique(): value.debugName() for value in outputs_of(node)}
            names.update(outputs)
            nodes.append(JitNode(node.scopeName(), tuple(outputs)))
    return nodes, names
