"""The TorchScript exporter without private parts of torch, for a release that changed them.

The scopes in node names are the evidence that is left. They name modules, not calls, and can be ambiguous.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir
import torch

from modelexport.capture import TORCHSCRIPT, Capture
from modelexport.errors import UnsupportedLibraryError
from modelexport.hierarchy import ROOT_CALL, ROOT_PATH, Attribution, CallId, CallTree, ModuleCall, ModuleTree
from modelexport.hierarchy.confidence import recorded_in_name
from modelexport.storage import ExporterFile, read_name_scope
from modelexport.torch_support import exporter_arguments
from modelexport.torch_support.private_jit import silent_log

_LOST = (
    "module calls could not be watched: {}; owners come from the names of nodes, and the inputs and outputs of calls "
    "are unknown"
)


def capture_unwatched(
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    lost: UnsupportedLibraryError,
) -> Capture:
    """Export as torch alone does, and take owners from the names of nodes.

    Args:
        model: The model, in the mode in which it is exported.
        tree: Its modules.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments of `torch.onnx.export`.
        lost: The part that is missing.
    """
    file = io.BytesIO()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UnsupportedLibraryError):  # not evidence: the exporter then prints its log
            stack.enter_context(silent_log())
        given, named = exporter_arguments(args, kwargs)
        torch.onnx.export(model, given, file, kwargs=named, dynamo=False, **options)  # type: ignore[arg-type]
    graph = ir.from_proto(onnx.load_model_from_string(file.getvalue()))
    calls = {ROOT_CALL: ModuleCall(ROOT_PATH)}
    recorded = {node: _owner(node, tree, calls) for node in graph.graph}
    return Capture(
        exporter=TORCHSCRIPT,
        model=graph,
        file=ExporterFile(file.getvalue(), {}),
        original_graph=graph,
        recorded={node: owner for node, owner in recorded.items() if owner is not None},
        tree=tree,
        calls=CallTree(calls),
        graph_kind="jit",
        graph_text=lambda: "the graph was not seen\n",
        notes=(_LOST.format(lost),),
    )


def _owner(node: ir.Node, tree: ModuleTree, calls: dict[CallId, ModuleCall]) -> Attribution | None:
    """Return the attribution to the innermost call in the node's name, and add the calls in it to `calls`."""
    paths = {info.path for info in tree}
    scope = read_name_scope(node.name or "", node.op_type, paths)
    if scope is None or not all(call.path in paths for call in scope.calls):
        return None
    parent: CallId | None = None
    for call in scope.calls:
        calls.setdefault(call, ModuleCall(call.path, call.index, parent))
        parent = call
    return recorded_in_name(scope.calls[-1])
