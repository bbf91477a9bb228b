"""Scopes for the nodes of a user's forward hooks, which belong to the call of the hooked module.

The tracer opens a module's scope for its `forward` only, so that the nodes of its hooks have the caller's scope. While
the exporter rewrites its graph, these nodes get a temporary scope with the number of the call. Before the exporter
names nodes by their scopes, each gets its own scope back, so that the file does not change.
"""

from __future__ import annotations

import re
from typing import Any

from modelexport.capture.torchscript.jit_graph import blocks_of, outputs_of
from modelexport.torch_support.private_jit import new_graph

_MARK = "modelexport-hook-"
# The operator of nodes that only store metadata and are never part of the graph.
_METADATA_ONLY = "modelexport::metadata"
_NUMBER = re.compile(rf"::{_MARK}(\d+)$")


class HookScopes:
    """The nodes of one trace that hooks computed."""

    def __init__(self) -> None:
        # For each of them a node with its metadata, in a separate graph.
        self._saved: list[Any] = []
        self._saved_graph: Any = new_graph()

    def label(self, state: Any, begin: Any, label: str) -> None:
        """Give the scope `label` to the nodes after `begin`, except those of module calls."""
        new = state.graph().create(_METADATA_ONLY, 0)
        current = new.scopeName()
        new.destroy()
        pending, found = [], []
        node = last_node(state)
        while node != begin:
            pending.append(node)
            node = node.prev()
        while pending:
            node = pending.pop()
            if node.scopeName() == current:
                found.append(node)
                pending.extend(inner for block in node.blocks() for inner in block.nodes())
        for node in found:
            saved = self._saved_graph.create(_METADATA_ONLY, 0)
            saved.copyMetadata(node)
            state.push_scope(f"{label}::{_MARK}{len(self._saved)}")
            labelled = state.graph().create(_METADATA_ONLY, 0)
            node.copyMetadata(labelled)
            labelled.destroy()
            state.pop_scope()
            self._saved.append(saved)

    def restore(self, graph: Any) -> dict[int, str]:
        """Restore the metadata of the nodes; return the temporary scopes by the numbers of the nodes' outputs."""
        scopes: dict[int, str] = {}
        for block in blocks_of(graph) if self._saved else ():
            for node in block.nodes():
                scope = node.scopeName()
                marked = _NUMBER.search(scope)
                if marked is not None:
                    node.copyMetadata(self._saved[int(marked[1])])
                    scopes.update({value.unique(): scope for value in outputs_of(node)})
        return scopes


def last_node(state: Any) -> Any:
    """Return the last node that was traced."""
    return state.graph().insertPoint().prev()
