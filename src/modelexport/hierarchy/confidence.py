"""The kind, confidence and reason of every attribution, one function for each case.

docs/attribution.md explains each confidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import ROOT_CALL, CallId, CallTree

CERTAIN: Final = 1.0
# Several calls did the work of the node, and all of them are named.
SEVERAL_CALLS: Final = 0.95

# Inferred from data flow.
ONE_REGION: Final = 0.9
AGREEING_NEIGHBOURS: Final = 0.8
ONE_SIDE: Final = 0.6
COMMON_CALLER: Final = 0.5
NO_EVIDENCE: Final = 0.1

# Matched by value with an eager run.
SAME_VALUE: Final = 0.9
SAME_LAYOUT: Final = 0.85
SEVERAL_CALLS_BY_VALUE: Final = 0.8
SAME_REGION: Final = 0.8
SAME_VALUE_AND_INPUTS: Final = 0.75
ONLY_CONSUMER_OF_WEIGHT: Final = 0.7
SEVERAL_CANDIDATES: Final = 0.5

# Read from a file without its sidecar.
STORED: Final[Mapping[str, float]] = {
    Kind.EXACT: CERTAIN,
    Kind.FUSED: SEVERAL_CALLS,
    Kind.MERGED: SEVERAL_CALLS,
    Kind.FOLDED: SEVERAL_CALLS,
    Kind.INFERRED: COMMON_CALLER,
}
TORCH_METADATA: Final = 0.7
SCOPED_NAME: Final = 0.6
NEAREST_NODES: Final = 0.5


# --- recorded by the exporter, and rewritten -------------------------------------------------------------------


def recorded_by_exporter(call: CallId) -> Attribution:
    """The exporter recorded the call of the node."""
    return Attribution(call, Kind.EXACT, CERTAIN, "the exporter recorded this call for the node")


def recorded_before_optimization(call: CallId) -> Attribution:
    """The exporter recorded the call of the node, and an optimizer rewrote the graph since, unseen."""
    return Attribution(call, Kind.INFERRED, *named_by_torch())


def recorded_unseen(call: CallId) -> Attribution:
    """The exporter recorded the call of the node, and no hook saw that call."""
    reason = "torch's metadata names this module; the call itself was not seen while torch traced the model"
    return Attribution(call, Kind.INFERRED, TORCH_METADATA, reason)


def recorded_in_name(call: CallId) -> Attribution:
    """The exporter's name for the node has the scope of the call, and nothing else was seen."""
    return Attribution(call, Kind.INFERRED, *named_by_scope())


def fused(own: Attribution, contributors: Iterable[CallId]) -> Attribution:
    """One node of the rewritten graph replaces nodes of several calls; `own` is that of the node with its output."""
    reason = "this node replaces nodes of several calls; this call computed its output"
    return _of_several_calls(own, Kind.FUSED, reason, contributors)


def merged(own: Attribution, contributors: Iterable[CallId]) -> Attribution:
    """Equal nodes of several calls were merged into one; `own` is that of the node that was kept."""
    reason = "equal nodes of several calls were merged into this node; the node of this call was kept"
    return _of_several_calls(own, Kind.MERGED, reason, contributors)


def folded(own: Attribution, contributors: Iterable[CallId] = ()) -> Attribution:
    """Constant folding replaced nodes; `own` is that of the node whose result the constant is."""
    reason = "a folded constant; nodes of this call computed it in the original graph"
    return _of_several_calls(own, Kind.FOLDED, reason, {*own.contributors, *contributors})


def _of_several_calls(own: Attribution, kind: Kind, reason: str, contributors: Iterable[CallId]) -> Attribution:
    others = tuple(sorted(set(contributors) - {own.owner}))
    return Attribution(own.owner, kind, min(own.confidence, SEVERAL_CALLS), reason, others)


def replacing(owners: set[CallId], calls: CallTree) -> Attribution:
    """A new node of the rewritten graph, in place of nodes with these owners or as an input of them."""
    owner = calls.innermost_around(owners)
    if len(owners) == 1:
        reason = "a new node; every node that it replaces or feeds was recorded for this call"
        return Attribution(owner, Kind.INFERRED, ONE_REGION, reason)
    reason = "a new node; it replaces or feeds nodes of several calls, and this is their innermost common caller"
    return Attribution(owner, Kind.INFERRED, COMMON_CALLER, reason, tuple(sorted(owners - {owner})))


# --- inferred from data flow -----------------------------------------------------------------------------------


def neighbours_of_several_calls(owner: CallId, neighbours: set[CallId]) -> Attribution:
    """The producers and consumers belong to several calls."""
    reason = f"not recorded; this is the innermost common caller of its producers and consumers: {_names(neighbours)}"
    return Attribution(owner, Kind.INFERRED, COMMON_CALLER, reason, tuple(sorted(neighbours - {owner})))


def producers_only(owner: CallId) -> Attribution:
    """Only the producers are known, and belong to one call."""
    return Attribution(owner, Kind.INFERRED, ONE_SIDE, "not recorded; its known producers belong to this call")


def consumers_only(owner: CallId) -> Attribution:
    """Only the consumers are known, and belong to one call."""
    return Attribution(owner, Kind.INFERRED, ONE_SIDE, "not recorded; its known consumers belong to this call")


def returned_by(owner: CallId) -> Attribution:
    """A call returns the output of the node, and did not receive it."""
    return Attribution(
        owner, Kind.INFERRED, AGREEING_NEIGHBOURS, "not recorded; this call returns its output and did not receive it"
    )


def agreeing_neighbours(owner: CallId) -> Attribution:
    """All known producers and consumers belong to one call."""
    reason = "not recorded; all its known producers and consumers belong to this call"
    return Attribution(owner, Kind.INFERRED, AGREEING_NEIGHBOURS, reason)


def without_evidence(around: CallId | None) -> Attribution:
    """Nothing around the node is known but the call of the node that owns its subgraph, if it is in one."""
    if around is None:
        reason = "not recorded, and none of its producers and consumers is known: the root is the default"
        return Attribution(ROOT_CALL, Kind.INFERRED, NO_EVIDENCE, reason)
    reason = "not recorded; the node that owns this subgraph belongs to this call"
    return Attribution(around, Kind.INFERRED, COMMON_CALLER, reason)


def in_unused_function() -> Attribution:
    """A node of a local function that no node calls."""
    reason = "no node calls the local function that this node is in: the root is the default"
    return Attribution(ROOT_CALL, Kind.INFERRED, NO_EVIDENCE, reason)


def in_function(users: Iterable[Attribution], calls: CallTree) -> Attribution:
    """A node of a local function, from the attributions of the nodes that call the function."""
    known = list(users)
    owners = {user.owner for user in known}
    owner = calls.innermost_around(owners)
    others = tuple(sorted({call for user in known for call in (user.owner, *user.contributors)} - {owner}))
    confidence = min(user.confidence for user in known)
    if len(owners) > 1:
        reason = "several calls use the local function that this node is in; this is their innermost common caller"
        return Attribution(owner, Kind.MERGED, confidence, reason, others)
    kinds = {user.kind for user in known}
    kind = kinds.pop() if len(kinds) == 1 else Kind.INFERRED
    return Attribution(owner, kind, confidence, "only this call uses the local function that this node is in", others)


# --- matched by value with an eager run ------------------------------------------------------------------------


def computed_by_value(owner: CallId) -> Attribution:
    """The output is distinctive, and only this call computed it."""
    return Attribution(owner, Kind.INFERRED, SAME_VALUE, "its output equals what this call computed in PyTorch")


def computed_from_same_inputs(owner: CallId) -> Attribution:
    """The output is not distinctive; the inputs decide."""
    reason = "its output is not distinctive, but equals what this call computed in PyTorch from the same inputs"
    return Attribution(owner, Kind.INFERRED, SAME_VALUE_AND_INPUTS, reason)


def laid_out_by(owner: CallId) -> Attribution:
    """The node changes the layout of a value only."""
    reason = "it changes no element, and its output has the layout that this call gave the value in PyTorch"
    return Attribution(owner, Kind.INFERRED, SAME_LAYOUT, reason)


def fused_by_value(owner: CallId, contributors: Iterable[CallId]) -> Attribution:
    """The inputs are those of other calls, the output is the owner's."""
    reason = "its output equals what this call computed in PyTorch; its inputs are those of the contributors"
    return Attribution(owner, Kind.FUSED, SEVERAL_CALLS_BY_VALUE, reason, tuple(sorted(contributors)))


def merged_by_value(owner: CallId, contributors: Iterable[CallId]) -> Attribution:
    """Several calls computed the output, and consumers of all of them read it."""
    reason = "several calls computed its output in PyTorch, and its consumers are theirs; this call ran first"
    return Attribution(owner, Kind.MERGED, SEVERAL_CALLS_BY_VALUE, reason, tuple(sorted(contributors)))


def part_of_merged(end: Attribution) -> Attribution:
    """The node computes an intermediate value of what several calls computed, each in one operator."""
    reason = "it computes a part of what several calls computed in PyTorch, each in one operator; this call ran first"
    return Attribution(end.owner, Kind.MERGED, SEVERAL_CALLS_BY_VALUE, reason, end.contributors)


def only_consumer_of_weight(owner: CallId) -> Attribution:
    """The node consumes a weight that one call consumed."""
    return Attribution(owner, Kind.INFERRED, ONLY_CONSUMER_OF_WEIGHT, "only this call uses a weight that it consumes")


# Why the value of a node does not decide its owner, for `one_of_candidates`.
PASSED_ON: Final = "it returns its input unchanged"
EQUAL_VALUES: Final = "several calls computed its output in PyTorch"
NO_SUCH_VALUE: Final = "PyTorch computed no such value"
UNSEEN_SUBGRAPH: Final = "the values in this subgraph were not seen"


def one_of_candidates(candidates: Iterable[CallId], evidence: str, calls: CallTree) -> Attribution:
    """The candidates ran between the matched tensors around the node; `evidence` is why its value does not decide."""
    known = set(candidates)
    owner = calls.innermost_around(known)
    if len(known) == 1:
        reason = f"{evidence}; only this call ran between the matched tensors around it"
        return Attribution(owner, Kind.INFERRED, SAME_REGION, reason)
    reason = f"{evidence}; this is the innermost common caller of the candidates: {_names(known)}"
    return Attribution(owner, Kind.INFERRED, SEVERAL_CANDIDATES, reason, tuple(sorted(known - {owner})))


# --- read from a file without its sidecar ----------------------------------------------------------------------


def stored_in_node(kind: str, store: str) -> tuple[float, str]:
    """Confidence and reason of an owner that the node itself names."""
    return STORED[kind], f"the node's own {store} names this call; the reason was in the sidecar"


def named_by_torch() -> tuple[float, str]:
    """Confidence and reason of an owner from torch's metadata."""
    reason = "torch's metadata names this module; torch's optimizer may have fused or merged the node since"
    return TORCH_METADATA, reason


def named_by_scope() -> tuple[float, str]:
    """Confidence and reason of an owner from the node's name."""
    return SCOPED_NAME, "the scope in the node's name matches this module; such names can be ambiguous"


def nearest_nodes() -> tuple[float, str]:
    """Confidence and reason of an owner from the nearest nodes that name one."""
    reason = "the file names no owner; this is the innermost common caller of the nearest nodes with an owner"
    return NEAREST_NODES, reason


def nothing_in_file() -> tuple[float, str]:
    """Confidence and reason where no node nearby names an owner."""
    return NO_EVIDENCE, "the file names no owner, neither for this node nor for one around it: the root is the default"


def _names(calls: Iterable[CallId]) -> str:
    return ", ".join(sorted(str(call) or "(root)" for call in calls))
