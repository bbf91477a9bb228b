"""Walks over data flow with a bounded number of visits: the nodes between two sets of tensors, and those after a node.

The node and value types are the caller's: the nodes of an ONNX graph, or the operators of an eager run.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import TypeVar

N = TypeVar("N")
V = TypeVar("V")

# Rewriting is local, so each node is in few regions of a graph. Where regions overlap more than this, they are cut to
# their starting nodes: the run time stays linear in the size of the graph.
_VISITS_PER_NODE = 32


class VisitBudget:
    """The number of nodes that may still be visited."""

    def __init__(self, visits: int) -> None:
        self._left = visits

    @classmethod
    def for_graph(cls, nodes: int) -> VisitBudget:
        """A budget for all walks over a graph of this many nodes."""
        return cls(_VISITS_PER_NODE * (nodes + 1))

    def spend(self) -> bool:
        """Use one visit; False where none is left."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True


def region(
    starts: Iterable[N],
    inputs: Callable[[N], Iterable[V]],
    producers: Callable[[N, V], Iterable[N] | None],
    budget: VisitBudget,
) -> list[N]:
    """The starting nodes, and all nodes on paths back from them that end at the region's inputs.

    Args:
        starts: The nodes that compute the region's outputs.
        inputs: The values that a node consumes.
        producers: For a node and a value that it consumes: the nodes that produce the value; an empty collection where
            the path leaves the region; None where the value is an input of the region.
        budget: The number of nodes that may be visited.
    """
    found: dict[N, bool] = {}
    for start in starts:
        found.setdefault(start, False)
        stack = [(start, list(inputs(start)))]
        while stack:
            node, values = stack[-1]
            if not values:
                stack.pop()
                if stack and found[node]:
                    found[stack[-1][0]] = True
                continue
            behind = producers(node, values.pop())
            if behind is None:
                found[node] = True
                continue
            for producer in behind:
                if producer in found:
                    found[node] = found[node] or found[producer]
                elif budget.spend():
                    found[producer] = False
                    stack.append((producer, list(inputs(producer))))
        found[start] = True
    return [node for node, kept in found.items() if kept]


def downstream(start: N, consumers: Callable[[N], Iterable[N]], budget: VisitBudget) -> list[N]:
    """The starting node and all nodes downstream, nearest first; `consumers` returns those of one node to follow."""
    found: dict[N, None] = {start: None}
    waiting = collections.deque([start])
    while waiting:
        for consumer in consumers(waiting.popleft()):
            if consumer not in found and budget.spend():
                found[consumer] = None
                waiting.append(consumer)
    return list(found)
