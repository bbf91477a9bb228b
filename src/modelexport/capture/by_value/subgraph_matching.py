"""Owners of the nodes in subgraphs: each subgraph is matched to the functions that eager PyTorch ran for it.

A subgraph is matched like the main graph. Its inputs are the values that the graph around it has and those that its
owning node passes to it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from modelexport.capture.by_value.eager_graph import EagerGraph, FunctionRun, Operation
from modelexport.capture.by_value.operator_matching import OperatorMatching
from modelexport.graph import Fingerprint, ValueIndex, subgraphs_of
from modelexport.hierarchy import Attribution, CallId, CallTree, confidence

# The fingerprints of the inputs of a subgraph and of the tensors that its nodes compute, by name.
Tensors = Mapping[str, Fingerprint]


def attribute_subgraphs(
    matching: OperatorMatching, tensors: Mapping[str, Tensors], node_ids: Mapping[ir.Node, str], calls: CallTree
) -> dict[ir.Node, Attribution]:
    """The attributions of nodes in subgraphs of a matched main graph for which there is evidence.

    `tensors` has the fingerprints of the tensors in each subgraph, by its path: ``If_3/then_branch/``.
    """
    known: dict[ir.Node, Attribution] = {}
    waiting = [matching]
    while waiting:
        outer = waiting.pop()
        for node, operation in outer.nodes_with_subgraphs():
            subgraphs = {
                subgraph: tensors.get(f"{node_ids[node]}/{name}/", {}) for name, subgraph in subgraphs_of(node)
            }
            for subgraph, functions in _pair(subgraphs, operation.functions, outer):
                if functions and subgraphs[subgraph]:
                    found = _match(subgraph, subgraphs[subgraph], functions, operation, outer, calls)
                    known.update(found.attributions())
                    waiting.append(found)
                elif functions:
                    known.update(_from_weights(subgraph, functions, operation.call, outer, calls))
    return known


def _pair(
    subgraphs: Mapping[ir.Graph, Tensors], functions: Sequence[FunctionRun], outer: OperatorMatching
) -> list[tuple[ir.Graph, list[FunctionRun]]]:
    """For each subgraph the functions it was exported from: its own where there are enough subgraphs, else all."""
    if len(functions) > len(subgraphs):
        # The condition of a loop is part of the loop's subgraph.
        return [(subgraph, list(functions)) for subgraph in subgraphs]
    scores = {
        (index, number): _similarity(subgraph, tensors, function, outer)
        for index, (subgraph, tensors) in enumerate(subgraphs.items())
        for number, function in enumerate(functions)
    }
    found: dict[int, int] = {}
    # With equal scores, in the order in which exporters write them.
    for index, number in sorted(scores, key=lambda pair: (-scores[pair], abs(pair[0] - pair[1]), pair)):
        if scores[index, number] and index not in found and number not in found.values():
            found[index] = number
    return [(subgraph, [functions[found[i]]] if i in found else []) for i, subgraph in enumerate(subgraphs)]


def _similarity(subgraph: ir.Graph, tensors: Tensors, function: FunctionRun, outer: OperatorMatching) -> int:
    """The number of distinctive tensors in the subgraph that the function computed too, plus that of shared weights."""
    fingerprints = outer.eager.run.fingerprints
    index = ValueIndex([fingerprints[v] for operation in function.all_operations() for v in operation.outputs])
    computed = [tensors.get(value.name or "") for node in subgraph for value in node.outputs]
    equal = sum(known is not None and known.is_distinctive and bool(index.find(known)) for known in computed)
    consumed = {value for operation in function.all_operations() for value in operation.inputs}
    weights = {v for node in subgraph.all_nodes() for v in node.inputs if v is not None and v.is_initializer()}
    return equal + sum(not consumed.isdisjoint(outer.found.get(weight, ())) for weight in weights)


def _match(
    subgraph: ir.Graph,
    tensors: Tensors,
    functions: Sequence[FunctionRun],
    operation: Operation,
    outer: OperatorMatching,
    calls: CallTree,
) -> OperatorMatching:
    """Match a subgraph to the runs of its functions."""
    run, operations = outer.eager.run, [inner for function in functions for inner in function.operations]
    arguments = {value for function in functions for value in function.inputs}
    values = arguments.union(operation.inputs)
    for inner in itertools.chain.from_iterable(function.all_operations() for function in functions):
        values.update(inner.inputs, inner.outputs, *((nested.inputs + nested.outputs) for nested in inner.functions))
    inner_run = dataclasses.replace(
        run,
        fingerprints=[known if number in values else None for number, known in enumerate(run.fingerprints)],
        operations=operations,
    )
    dynamic = values.difference(outer.eager.constant) & arguments.union(operation.inputs)
    inputs = {value.name or "": tensors.get(value.name or "") for value in subgraph.inputs}
    anchors = {
        name: {v for v in arguments if (other := run.fingerprints[v]) is not None and known.same_values(other)}
        for name, known in inputs.items()
        if known is not None
    }
    results = [value for function in functions for value in function.outputs]
    visible = ChainMap(dict(tensors), dict(outer.tensors))
    return OperatorMatching(subgraph, visible, anchors, EagerGraph(inner_run, dynamic), calls, results, outer)


def _from_weights(
    subgraph: ir.Graph, functions: Sequence[FunctionRun], caller: CallId, outer: OperatorMatching, calls: CallTree
) -> Iterator[tuple[ir.Node, Attribution]]:
    """Attributions in a subgraph that could not be run: the weights that its nodes consume are the only evidence."""
    consumers: dict[int, set[CallId]] = {}
    ran = {caller}
    for inner in itertools.chain.from_iterable(function.all_operations() for function in functions):
        ran.add(inner.call)
        for value in () if inner.functions else inner.inputs:
            consumers.setdefault(value, set()).add(inner.call)
    for node in subgraph.all_nodes():
        weights = [value for value in node.inputs if value is not None and value.is_initializer()]
        consumed = {number for weight in weights for number in outer.found.get(weight, ())}
        owners = set().union(*(consumers.get(number, set()) for number in consumed))
        if len(owners) == 1:
            yield node, confidence.only_consumer_of_weight(owners.pop())
        else:
            yield node, confidence.one_of_candidates(owners or ran, confidence.UNSEEN_SUBGRAPH, calls)
