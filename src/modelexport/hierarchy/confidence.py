"""The kind, confidence and reason of every attribution, one name for each case.

docs/attribution.md explains each confidence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import ROOT_CALL, CallId, CallTree

CERTAIN: Final = 1.0
# Several calls did the work of the node, and all of them are named.
SEVERAL_CALLS: Final = 0.95
SEVERAL_CALLS_BY_VALUE: Final = 0.8
AGREEING_NEIGHBOURS: Final = 0.8
ONE_SIDE: Final = 0.6
COMMON_CALLER: Final = 0.5
NO_EVIDENCE: Final = 0.1
# Read from a file without its sidecar.
STORED: Final[Mapping[str, float]] = {
    Kind.EXACT: CERTAIN,
    Kind.FUSED: SEVERAL_CALLS,
    Kind.MERGED: SEVERAL_CALLS,
    Kind.FOLDED: SEVERAL_CALLS,
    Kind.INFERRED: COMMON_CALLER,
}
TORCH_METADATA: Final = 0.7


@dataclasses.dataclass(frozen=True)
class _Case:
    """The evidence for an attribution; called with the owner and contributors, it returns the attribution."""

    kind: Kind
    confidence: float
    reason: str

    def __call__(self, owner: CallId, contributors: Iterable[CallId] = ()) -> Attribution:
        others = tuple(sorted(set(contributors) - {owner}))
        return Attribution(owner, self.kind, self.confidence, self.reason, others)


# --- read from a file without its sidecar: confidence and reason -----------------------------------------------


def stored_in_node(kind: str, store: str) -> tuple[float, str]:
    """Confidence and reason of an owner that the node itself names."""
    return STORED[kind], f"the node's own {store} names this call; the reason was in the sidecar"


def named_by_torch() -> tuple[float, str]:
    """Confidence and reason of an owner from torch's metadata."""
    reason = "torch's metadata names this module; torch's optimizer may have fused or merged the node since"
    return TORCH_METADATA, reason


def named_by_scope() -> tuple[float, str]:
    """Confidence and reason of an owner from the node's name."""
    return 0.6, "the scope in the node's name matches this module; such names can be ambiguous"


def nearest_nodes() -> tuple[float, str]:
    """Confidence and reason of an owner from the nearest nodes that name one."""
    reason = "the file names no owner; this is the innermost common caller of the nearest nodes with an owner"
    return 0.5, reason


def nothing_in_file() -> tuple[float, str]:
    """Confidence and reason where no node nearby names an owner."""
    return NO_EVIDENCE, "the file names no owner, neither for this node nor for one around it: the root is the default"


# --- recorded by the exporter, and rewritten -------------------------------------------------------------------

recorded_by_exporter = _Case(Kind.EXACT, CERTAIN, "the exporter recorded this call for the node")
# An optimizer rewrote the graph since, unseen.
recorded_before_optimization = _Case(Kind.INFERRED, *named_by_torch())
recorded_unseen = _Case(
    Kind.INFERRED,
    TORCH_METADATA,
    "torch's metadata names this module; the call itself was not seen while torch traced the model",
)
recorded_in_name = _Case(Kind.INFERRED, *named_by_scope())


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
    return _Case(kind, min(own.confidence, SEVERAL_CALLS), reason)(own.owner, contributors)


def replacing(owners: set[CallId], calls: CallTree) -> Attribution:
    """A new node of the rewritten graph, in place of nodes with these owners or as an input of them."""
    owner = calls.innermost_around(owners)
    if len(owners) == 1:
        reason = "a new node; every node that it replaces or feeds was recorded for this call"
        return _Case(Kind.INFERRED, 0.9, reason)(owner)
    reason = "a new node; it replaces or feeds nodes of several calls, and this is their innermost common caller"
    return _Case(Kind.INFERRED, COMMON_CALLER, reason)(owner, owners)


# --- inferred from data flow -----------------------------------------------------------------------------------

producers_only = _Case(Kind.INFERRED, ONE_SIDE, "not recorded; its known producers belong to this call")
consumers_only = _Case(Kind.INFERRED, ONE_SIDE, "not recorded; its known consumers belong to this call")
returned_by = _Case(
    Kind.INFERRED, AGREEING_NEIGHBOURS, "not recorded; this call returns its output and did not receive it"
)
agreeing_neighbours = _Case(
    Kind.INFERRED, AGREEING_NEIGHBOURS, "not recorded; all its known producers and consumers belong to this call"
)


def neighbours_of_several_calls(owner: CallId, neighbours: set[CallId]) -> Attribution:
    """The producers and consumers belong to several calls."""
    reason = f"not recorded; this is the innermost common caller of its producers and consumers: {_names(neighbours)}"
    return _Case(Kind.INFERRED, COMMON_CALLER, reason)(owner, neighbours)


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

computed_by_value = _Case(Kind.INFERRED, 0.9, "its output equals what this call computed in PyTorch")
computed_from_same_inputs = _Case(
    Kind.INFERRED,
    0.75,
    "its output is not distinctive, but equals what this call computed in PyTorch from the same inputs",
)
laid_out_by = _Case(
    Kind.INFERRED,
    0.85,
    "it changes no element, and its output has the layout that this call gave the value in PyTorch",
)
only_consumer_of_weight = _Case(Kind.INFERRED, 0.7, "only this call uses a weight that it consumes")
fused_by_value = _Case(
    Kind.FUSED,
    SEVERAL_CALLS_BY_VALUE,
    "its output equals what this call computed in PyTorch; its inputs are those of the contributors",
)
merged_by_value = _Case(
    Kind.MERGED,
    SEVERAL_CALLS_BY_VALUE,
    "several calls computed its output in PyTorch, and its consumers are theirs; this call ran first",
)
part_of_merged = _Case(
    Kind.MERGED,
    SEVERAL_CALLS_BY_VALUE,
    "it computes a part of what several calls computed in PyTorch, each in one operator; this call ran first",
)

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
        return _Case(Kind.INFERRED, 0.8, reason)(owner)
    reason = f"{evidence}; this is the innermost common caller of the candidates: {_names(known)}"
    return _Case(Kind.INFERRED, 0.5, reason)(owner, known)


def _names(calls: Iterable[CallId]) -> str:
    return ", ".join(sorted(str(call) or "(root)" for call in calls))
