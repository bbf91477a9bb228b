"""Owners from the scopes in node names, the evidence that is left where a release of torch changed a private part.

Scopes name modules, not calls, and can be ambiguous.
"""

from __future__ import annotations

import onnx_ir as ir

from modelexport.hierarchy import Attribution, CallId, CallTree, ModuleCall, ModuleTree
from modelexport.hierarchy.confidence import recorded_in_name
from modelexport.storage import read_name_scope


def read_name_scopes(graph: ir.Graph, tree: ModuleTree) -> tuple[dict[ir.Node, Attribution], CallTree]:
    """Return the attributions to the innermost calls in the names of nodes, and all calls in these names."""
    paths = {info.path for info in tree}
    calls: dict[CallId, ModuleCall] = {}
    recorded: dict[ir.Node, Attribution] = {}
    for node in graph:
        scope = read_name_scope(node.name or "", node.op_type, paths)
        if scope is None or not all(call.path in paths for call in scope.calls):
            continue
        parent: CallId | None = None
        for call in scope.calls:
            calls.setdefault(call, ModuleCall(call.path, call.index, parent))
            parent = call
        recorded[node] = recorded_in_name(scope.calls[-1])
    return recorded, CallTree(calls)
