"""Owners of the nodes in bodies: each body is matched to the functions that eager PyTorch ran for it.

A body is a graph like any other, on what it reads from around it and what it is handed; so it is matched like one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from modelexport.capture.by_value.eager_graph import Body, EagerGraph, Operation
from modelexport.capture.by_value.operator_matching import Correspondence
from modelexport.graph import Fingerprint, ValueIndex, subgraphs_of
from modelexport.hierarchy import Attribution, CallId, CallTree, confidence

# The fingerprints of what a body is handed and makes, by the tensors' names.
Tensors = Mapping[str, Fingerprint]


def attribute_bodies(
    matching: Correspondence, inner: Mapping[str, Tensors], identities: Mapping[ir.Node, str], calls: CallTree
) -> dict[ir.Node, Attribution]:
    """The owners of nodes in bodies for which there is evidence.

    Args:
        matching: The graph around, matched to what eager PyTorch did.
        inner: The fingerprints of the tensors in each body, by the way to it: ``If_3/then_branch/``.
        identities: The nodes' identities.
        calls: The module calls of the run.
    """
    known: dict[ir.Node, Attribution] = {}
    waiting = [matching]
    while waiting:
        current = waiting.pop()
        for holder, operation in current.holders():
            bodies = {body: inner.get(f"{identities[holder]}/{name}/", {}) for name, body in subgraphs_of(holder)}
            for body, functions in _paired(bodies, operation.bodies, current):
                if functions and bodies[body]:
                    found = _matched(body, bodies[body], functions, operation, current, calls)
                    known.update(found.attributions())
                    waiting.append(found)
                elif functions:
                    known.update(_by_weights(body, functions, operation.call, current, calls))
    return known


def _paired(
    bodies: Mapping[ir.Graph, Tensors], functions: Sequence[Body], around: Correspondence
) -> list[tuple[ir.Graph, list[Body]]]:
    """For each body the functions it was made of: one where there is one for each, else all of them."""
    if len(functions) > len(bodies):
        # The condition of a loop is part of its body.
        return [(body, list(functions)) for body in bodies]
    scores = {
        (place, number): _likeness(body, tensors, function, around)
        for place, (body, tensors) in enumerate(bodies.items())
        for number, function in enumerate(functions)
    }
    found: dict[int, int] = {}
    # Where they are equally alike, in the order in which exporters write them.
    for place, number in sorted(scores, key=lambda pair: (-scores[pair], abs(pair[0] - pair[1]), pair)):
        if scores[place, number] and place not in found and number not in found.values():
            found[place] = number
    return [(body, [functions[found[p]]] if p in found else []) for p, body in enumerate(bodies)]


def _likeness(body: ir.Graph, tensors: Tensors, function: Body, around: Correspondence) -> int:
    """How many tensors of a body hold what the function made, and how many weights it read too."""
    fingerprints = around.eager.run.fingerprints
    index = ValueIndex([fingerprints[v] for operation in function.all_operations() for v in operation.outputs])
    made = [tensors.get(value.name or "") for node in body for value in node.outputs]
    alike = sum(known is not None and known.is_distinctive and bool(index.find(known)) for known in made)
    read = {value for operation in function.all_operations() for value in operation.inputs}
    weights = {v for node in body.all_nodes() for v in node.inputs if v is not None and v.is_initializer()}
    return alike + sum(not read.isdisjoint(around.found.get(weight, ())) for weight in weights)


def _matched(
    body: ir.Graph,
    tensors: Tensors,
    functions: Sequence[Body],
    operation: Operation,
    around: Correspondence,
    calls: CallTree,
) -> Correspondence:
    """A body matched to what its functions did."""
    run, operations = around.eager.run, [inner for function in functions for inner in function.operations]
    given = {value for function in functions for value in function.given}
    values = given.union(operation.inputs)
    for inner in itertools.chain.from_iterable(function.all_operations() for function in functions):
        values.update(inner.inputs, inner.outputs, *((body.given + body.results) for body in inner.bodies))
    seen = dataclasses.replace(
        run,
        fingerprints=[known if number in values else None for number, known in enumerate(run.fingerprints)],
        operations=operations,
    )
    eager = EagerGraph(seen, dynamic=values.difference(around.eager.constant) & given.union(operation.inputs))
    handed = {value.name or "": tensors.get(value.name or "") for value in body.inputs}
    anchors = {
        name: {v for v in given if (other := run.fingerprints[v]) is not None and known.same_values(other)}
        for name, known in handed.items()
        if known is not None
    }
    results = [value for function in functions for value in function.results]
    visible = ChainMap(dict(tensors), dict(around.tensors))
    return Correspondence(body, visible, anchors, eager, calls, results, around)


def _by_weights(
    body: ir.Graph, functions: Sequence[Body], caller: CallId, around: Correspondence, calls: CallTree
) -> Iterator[tuple[ir.Node, Attribution]]:
    """Owners in a body that could not be run: of its values nothing is known but the weights that are read."""
    readers: dict[int, set[CallId]] = {}
    ran = {caller}
    for inner in itertools.chain.from_iterable(function.all_operations() for function in functions):
        ran.add(inner.call)
        for value in () if inner.bodies else inner.inputs:
            readers.setdefault(value, set()).add(inner.call)
    for node in body.all_nodes():
        weights = [value for value in node.inputs if value is not None and value.is_initializer()]
        read = {number for weight in weights for number in around.found.get(weight, ())}
        owners = set().union(*(readers.get(number, set()) for number in read))
        if len(owners) == 1:
            yield node, confidence.only_consumer_of_weight(owners.pop())
        else:
            yield node, confidence.one_of_candidates(owners or ran, confidence.UNSEEN_SUBGRAPH, calls)
