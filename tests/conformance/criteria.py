"""The criteria for every column, ours and torch's own."""

from __future__ import annotations

import itertools

import numpy as np

from tests.conformance.bench import Column
from tests.support.value_check import Case as Contaminated
from tests.support.value_check import Verdict, judge_values


def unowned(column: Column) -> list[str]:
    """The nodes, those of subgraphs and functions included, without a module of the model."""
    paths = column.truth.paths
    return [
        identity
        for identity, _ in column.file.nodes
        if identity not in column.claims
        or (owner := column.claims[identity].owner) is None
        or column.truth.module_of(owner) not in paths
    ]


def verdict(column: Column) -> Verdict:
    """The value check, over all inputs of the case."""
    truth, file = column.truth, column.file
    name = str if column.by_call else truth.module_of
    claims = {}
    for identity, node in file.nodes:
        claim = column.claims.get(identity)
        prefix = identity[: len(identity) - len(next((output for output in node.output if output), ""))]
        # Only a claim can be wrong; a node without one counts as unowned.
        if claim is not None and claim.owner is not None:
            claims.update({f"{prefix}{output}": tuple(map(name, claim.names)) for output in node.output if output})
    judged, total, wrong = 0, 0, set()
    for results, tensors, feeds in zip(truth.results, file.tensors, file.feeds, strict=True):
        eager = [(array, name(call)) for array, call in results]
        found = judge_values(file.proto, claims, eager, tensors, feeds)
        judged, total = max(judged, found.judged), max(total, found.tensors)
        wrong |= set(found.contaminated)
    return Verdict(judged, total, tuple(sorted(wrong, key=lambda case: case.node)))


def contaminated(column: Column) -> tuple[Contaminated, ...]:
    return verdict(column).contaminated


def lost(column: Column) -> set[str]:
    """The calls that ran operators and that no node names: their nodes were attributed to other calls."""
    truth = column.truth
    named = {name for claim in column.claims.values() for name in claim.names}
    removed = truth.case.removed_from(column.kind)
    if column.by_call:
        return truth.running - named - removed
    modules = {truth.module_of(call) for call in truth.running}
    return modules - {truth.module_of(call) for call in named} - {truth.module_of(call) for call in removed}


def wrongly_removed(column: Column) -> set[str]:
    """The calls that a node names although the case states that their nodes are removed."""
    named = {name for claim in column.claims.values() for name in claim.names}
    return truth_names(column, named) & truth_names(column, column.truth.case.removed_from(column.kind))


def truth_names(column: Column, calls: set[str]) -> set[str]:
    return calls if column.by_call else {column.truth.module_of(call) for call in calls}


def unmet(column: Column) -> list[str]:
    """The expectations about contributors that do not hold, in words."""
    truth, found = column.truth, []
    for expect in truth.case.expects:
        if not expect.is_about(column.kind):
            continue
        what = expect.value if isinstance(expect.value, str) else expect.value.__name__
        producer = column.file.producer(truth.value(expect.value))
        if producer is None:
            found.append(f"no node computes {what!r}")
            continue
        claim = column.claims.get(producer)
        names = truth_names(column, set(claim.names)) if claim is not None else set()
        wanted = truth_names(column, set(expect.names))
        if names != wanted:
            found.append(f"{producer} computes {what!r} and names {sorted(names)}, not {sorted(wanted)}")
        elif claim is not None and column.document is not None:
            if expect.owner is not None and claim.owner != expect.owner:
                found.append(f"{producer} computes {what!r} and is owned by {claim.owner!r}, not {expect.owner!r}")
            if expect.kinds and claim.kind not in expect.kinds:
                found.append(f"{producer} computes {what!r} and is {claim.kind}, not {' or '.join(expect.kinds)}")
    return found


def has_expectations(column: Column) -> bool:
    return any(expect.is_about(column.kind) for expect in column.truth.case.expects)


def told_apart(column: Column) -> tuple[int, int]:
    """Of the pairs of calls of one module that return different values: how many have different labels.

    Each call is found by the node that makes the value it returns, so this needs no agreement on how calls are named.
    """
    truth = column.truth
    by_module: dict[str, list[str]] = {}
    for call, seen in truth.calls[0].items():
        if seen.outputs:
            by_module.setdefault(truth.module_of(call), []).append(call)
    good = total = 0
    for calls in by_module.values():
        for one, other in itertools.combinations(calls, 2):
            producers = [column.file.producer(truth.value(call)) for call in (one, other)]
            if None in producers or producers[0] == producers[1]:
                continue
            labels = [column.claims[producer].label if producer in column.claims else "" for producer in producers]
            total += 1
            good += labels[0] != labels[1]
    return good, total


def wrong_boundaries(column: Column) -> tuple[list[str], int]:
    """The boundary tensors with other values than in PyTorch, and how many were compared."""
    document = column.document
    assert document is not None, "only ours have boundaries"
    tensors = {**column.file.tensors[0], **column.file.feeds[0]}
    wrong, compared = [], 0
    for call in document.calls:
        seen = column.truth.calls[0].get(call.id)
        if seen is None or not column.by_call:
            continue
        for boundaries, values in ((call.inputs, seen.inputs), (call.outputs, seen.outputs)):
            for boundary in boundaries:
                if boundary.tensor not in tensors or boundary.name not in values:
                    continue
                compared += 1
                found, expected = tensors[boundary.tensor].astype(np.float32), values[boundary.name]
                if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3, atol=1e-4):
                    wrong.append(f"{call.id}: {boundary.name} is not {boundary.tensor}")
    return wrong, compared
