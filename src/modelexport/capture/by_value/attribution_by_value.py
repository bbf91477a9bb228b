"""Attributes the nodes of any ONNX graph of a model: one eager pass and one run of the graph, matched by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from modelexport.capture.by_value.boundary_matching import calls_with_boundaries
from modelexport.capture.by_value.eager_graph import EagerGraph, EagerRun
from modelexport.capture.by_value.eager_recording import run_eagerly
from modelexport.capture.by_value.graph_run import as_feed, match_inputs, run_graph
from modelexport.capture.by_value.operator_matching import OperatorMatching
from modelexport.capture.by_value.subgraph_matching import attribute_subgraphs
from modelexport.capture.diagnosis import in_one_line
from modelexport.errors import InputError, ModelExportError
from modelexport.graph import Fingerprint, ValueIndex, nodes_with_ids, take_fingerprint
from modelexport.hierarchy import ROOT_CALL, ROOT_PATH, Attribution, CallTree, ModuleCall, ModuleTree
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ownership import infer_missing
from modelexport.torch_support import named_arguments

# The fraction of a graph's distinctive tensors that must match: a rewritten graph computes some values differently.
_MIN_MATCHED = 0.1


@dataclasses.dataclass(frozen=True)
class ValueMatch:
    """The owners of a graph's nodes, found by value, and how far the graph and the model agree.

    Attributes:
        known: The attributions with evidence by value.
        attributions: The attribution of every node, those in subgraphs and functions included.
        calls: The module calls, with their boundaries as tensors of the graph.
        distinctive: The number of nodes in the main graph that compute a distinctive tensor.
        matched: For how many of them eager PyTorch computed the same values.
        agrees: Whether the graph computes what the model computes: enough distinctive tensors, or its outputs.
        run: The eager run.
    """

    known: Mapping[ir.Node, Attribution]
    attributions: Mapping[ir.Node, Attribution]
    calls: CallTree
    distinctive: int
    matched: int
    agrees: bool
    run: EagerRun

    def describe_agreement(self) -> str:
        """How many tensors match, as a part of a sentence."""
        if self.distinctive:
            return f"{self.matched} of {self.distinctive} distinctive tensors match by value"
        return f"it has no distinctive tensors, and its outputs {'match' if self.agrees else 'differ'}"

    def describe(self) -> str:
        """The eager run as text: each operator with its call, and the numbers of its inputs and outputs."""
        lines = [
            f"[{str(operation.call) or '(root)'}] {list(operation.inputs)} -> {list(operation.outputs)}"
            for operation in self.run.operations
        ]
        return "\n".join(lines) + "\n"


def attribute_by_value(
    graph: ir.Model,
    model: torch.nn.Module,
    tree: ModuleTree,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    limits: RunLimits = DEFAULT_RUN_LIMITS,
) -> ValueMatch:
    """Find the owners of the nodes of any exporter's graph of the model by the values they compute.

    Raises:
        StrategyIncompatibleError: onnxruntime cannot run the graph.
        InputError: The inputs do not fit the graph or the model.
    """
    given = list(named_arguments(tree[ROOT_PATH].forward_arguments, args, kwargs))
    indices = match_inputs(graph.graph, given)
    inputs = [value for value in graph.graph.inputs if value.name in indices]
    feeds = {value.name or "": as_feed(given[indices[value.name or ""]][1], value) for value in inputs}
    run = _run_model(model, tree, args, kwargs)
    tensors, in_subgraphs = run_graph(graph, feeds, run.mean_bytes, limits)
    tensors.update({name: taken for name, fed in feeds.items() if (taken := take_fingerprint(fed)) is not None})
    eager = EagerGraph(run)
    anchors = _match_weights(graph.graph, tensors, eager)
    anchors.update({name: {run.calls[ROOT_CALL].inputs[index].value} for name, index in indices.items()})
    calls = CallTree({call.id: ModuleCall(call.id.path, call.id.index, call.parent) for call in run.calls.values()})
    results = [tensor.value for tensor in run.calls[ROOT_CALL].outputs]
    matching = OperatorMatching(graph.graph, tensors, anchors, eager, calls, results)
    node_ids = {node: node_id for node_id, node in nodes_with_ids(graph)}
    known = {**matching.attributions(), **attribute_subgraphs(matching, in_subgraphs, node_ids, calls)}
    owners = infer_missing(graph, known, calls)
    distinctive = [node for node in graph.graph if _is_distinctive(node, tensors)]
    matched = [node for node in distinctive if matching.counterparts(node)]
    enough = len(matched) >= len(distinctive) * _MIN_MATCHED or _is_an_output_matched(graph.graph, matching)
    return ValueMatch(
        known=known,
        attributions=owners,
        calls=calls_with_boundaries(run, calls, matching, tensors, owners),
        distinctive=len(distinctive),
        matched=len(matched),
        agrees=enough if distinctive else _has_same_outputs(graph.graph, tensors, run),
        run=run,
    )


def _run_model(model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EagerRun:
    try:
        return run_eagerly(model, tree, args, kwargs)
    except ModelExportError:
        raise
    except Exception as error:
        raise InputError(f"{type(model).__name__}.forward fails on the example inputs: {in_one_line(error)}") from error


def _is_distinctive(node: ir.Node, tensors: Mapping[str, Fingerprint]) -> bool:
    fingerprints = (tensors.get(value.name or "") for value in node.outputs)
    return any(known is not None and known.is_distinctive for known in fingerprints)


def _is_an_output_matched(graph: ir.Graph, matching: OperatorMatching) -> bool:
    producers = (output.producer() for output in graph.outputs)
    return any(matching.counterparts(node) for node in producers if node is not None)


def _has_same_outputs(graph: ir.Graph, tensors: Mapping[str, Fingerprint], run: EagerRun) -> bool:
    """Whether each output of the graph with a fingerprint has the values of a tensor that the model returned."""
    returned = [run.fingerprints[tensor.value] for tensor in run.calls[ROOT_CALL].outputs]
    outputs = [known for value in graph.outputs if (known := tensors.get(value.name or "")) is not None]
    return bool(outputs) and all(
        any(other is not None and known.same_order(other) for other in returned) for known in outputs
    )


def _match_weights(graph: ir.Graph, tensors: dict[str, Fingerprint], eager: EagerGraph) -> dict[str, set[int]]:
    """For each initializer the constants of the run that it may be, by content or by name.

    Adds the fingerprints of the initializers to `tensors`.
    """
    run = eager.run
    constants = [known if number in eager.constant else None for number, known in enumerate(run.fingerprints)]
    index = ValueIndex(constants)
    found: dict[str, set[int]] = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        known = take_fingerprint(tensor.numpy()) if tensor is not None else None
        if known is None:
            continue
        tensors[name] = known
        # By content first: optimizers keep one of several equal weights, and its name is wrong for the others.
        found[name] = set(index.find(known))
        number = run.weights.get(name)
        own = run.fingerprints[number] if number is not None else None
        if not found[name] and number is not None and own is not None and own.group[:2] == known.group[:2]:
            found[name] = {number}
    return found
