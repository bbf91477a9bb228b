"""Tensors of the executed graph that onnxruntime gave new names, as it does where it changes their memory layout.

A node that it creates or changes there keeps a trace of its origin: it has the name of the original node, or a name
that begins with that of the tensor it computes. The trace counts only if data flow confirms it: in the original graph,
that tensor is computed from the tensors that the node consumes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from modelexport.graph import named_values

# How far the tensor that a node computes may be from those it consumes, in nodes of the original graph.
_MAX_REGION = 64
_SEPARATOR = "_"


def original_names(tagged: ir.Model, executed: ir.Model) -> dict[ir.Value, str] | None:
    """The names that tensors of the executed graph have in the graph of the file; None if the names are the same.

    Tensors of subgraphs keep their names.
    """
    finder = _Finder(tagged, executed)
    if not finder.renamed:
        return None
    same = {value: value.name for graph in executed.graphs() for value in _values(graph) if value.name}
    return {**same, **finder.renamed}


def _values(graph: ir.Graph | ir.GraphView) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


class _Finder:
    """Finds the original name of each renamed tensor of the main graph, in the order of execution."""

    def __init__(self, tagged: ir.Model, executed: ir.Model) -> None:
        self._originals = named_values(tagged.graph)
        self._nodes = {node.name: node for node in tagged.graph if node.name}
        self._kept = named_values(executed.graph)
        self.renamed: dict[ir.Value, str] = {}
        traced = {node: name for node in executed.graph if (name := self._trace(node)) is not None}
        self._computed = {*self._kept, *traced.values()}
        taken: set[str] = set()
        for node, name in traced.items():
            given = self._consumed(node)
            if name not in taken and self._is_computed_from(name, given):
                self.renamed[node.outputs[0]] = self._last(name, given)
                taken |= {name, self.renamed[node.outputs[0]]}

    def _trace(self, node: ir.Node) -> str | None:
        """The tensor that the name of a node refers to, if no other node computes it.

        A node that only changes the layout back gives the tensor its own name again.
        """
        name, output = node.name or "", node.outputs[0] if len(node.outputs) == 1 else None
        if output is None or output.name in self._originals:
            return None
        same = self._nodes.get(name)
        if same is not None and len(same.outputs) == 1 and same.outputs[0].name not in self._kept:
            return same.outputs[0].name
        while _SEPARATOR in name:
            name = name.rpartition(_SEPARATOR)[0]
            if name in self._originals:
                producer = self._kept[name].producer() if name in self._kept else None
                is_free = name not in self._kept or (producer is not None and set(producer.inputs) == {output})
                return name if is_free else None
        return None

    def _consumed(self, node: ir.Node) -> set[str]:
        """The original names of the tensors that a node consumes, past nodes whose outputs have none."""
        found: set[str] = set()
        waiting, seen = list(node.inputs), set[ir.Value]()
        while waiting and len(seen) < _MAX_REGION:
            value = waiting.pop()
            if value is None or value in seen:
                continue
            seen.add(value)
            if value in self.renamed:
                found.add(self.renamed[value])
            elif value.name in self._originals:
                found.add(str(value.name))
            elif (producer := value.producer()) is not None:
                waiting.extend(producer.inputs)
        return found

    def _is_computed_from(self, name: str, given: set[str]) -> bool:
        """Whether the original graph computes a tensor from one of these, in few nodes."""
        waiting, seen = [self._originals[name].producer()], set[ir.Node]()
        while waiting and len(seen) < _MAX_REGION:
            node = waiting.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            for value in node.inputs:
                if value is not None and not value.is_initializer():
                    if value.name in given:
                        return True
                    waiting.append(value.producer())
        return False

    def _last(self, name: str, given: set[str]) -> str:
        """The tensor that the node really computes: it may do the work of the next original nodes too.

        That is so for a node without weights that alone consumes the tensor, needs nothing else but tensors that the
        executed node consumes, and whose output no other executed node computes.
        """
        value = self._originals[name]
        while True:
            users = {use.node for use in value.uses()}
            user = next(iter(users), None)
            if user is None or len(users) > 1 or len(user.outputs) != 1 or value.is_graph_output():
                return str(value.name)
            others = [other for other in user.inputs if other is not value]
            if any(other is None or other.name not in given or other.is_initializer() for other in others):
                return str(value.name)
            if user.outputs[0].name in self._computed:
                return str(value.name)
            value = user.outputs[0]
