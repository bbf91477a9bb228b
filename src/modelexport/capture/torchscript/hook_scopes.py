"""What a user's forward hooks compute, under the scope of the call they are part of.

The tracer's scope of a module is that of its `forward` alone: what its hooks compute is recorded under the caller's. So
their nodes get a scope of their own that carries the call, for as long as the exporter rewrites its graph. Before it
makes names of scopes, each has back what it had: the file is as it would have been.
"""

from __future__ import annotations

import re
from typing import Any

from modelexport.capture.torchscript.jit_graph import blocks_of, outputs_of
from modelexport.torch_support.private_jit import new_graph

_MARK = "modelexport-hook-"
# A node that is never part of a graph.
_ANY = "modelexport::kept"
_NUMBER = re.compile(rf"::{_MARK}(\d+)$")


class HookScopes:
    """The nodes of one trace that hooks recorded."""

    def __init__(self) -> None:
        # Nodes that hold what the others had before, in a graph of their own.
        self._kept: list[Any] = []
        self._keeper: Any = new_graph()

    def begin(self, state: Any) -> Any:
        """The place in the trace from where on nodes are a hook's."""
        return _last_node(state)

    def label(self, state: Any, begin: Any, label: str) -> None:
        """Put what was recorded since `begin`, but for what calls of modules recorded, under the scope `label`."""
        here = _scope_of_new_node(state)
        waiting, found = [], []
        node = _last_node(state)
        while node != begin:
            waiting.append(node)
            node = node.prev()
        while waiting:
            node = waiting.pop()
            if node.scopeName() == here:
                found.append(node)
                waiting.extend(inner for block in node.blocks() for inner in block.nodes())
        for node in found:
            kept = self._keeper.create(_ANY, 0)
            kept.copyMetadata(node)
            state.push_scope(f"{label}::{_MARK}{len(self._kept)}")
            model = state.graph().create(_ANY, 0)
            node.copyMetadata(model)
            model.destroy()
            state.pop_scope()
            self._kept.append(kept)

    def put_back(self, graph: Any) -> dict[int, str]:
        """Give the nodes what they had before; gives the scopes they had instead, by the numbers of their values."""
        scopes: dict[int, str] = {}
        for block in blocks_of(graph) if self._kept else ():
            for node in block.nodes():
                scope = node.scopeName()
                marked = _NUMBER.search(scope)
                if marked is not None:
                    node.copyMetadata(self._kept[int(marked[1])])
                    scopes.update({value.unique(): scope for value in outputs_of(node)})
        return scopes


def _last_node(state: Any) -> Any:
    return state.graph().insertPoint().prev()


def _scope_of_new_node(state: Any) -> str:
    node = state.graph().create(_ANY, 0)
    scope: str = node.scopeName()
    node.destroy()
    return scope
