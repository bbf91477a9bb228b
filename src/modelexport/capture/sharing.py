"""Calls that a node works for besides its own, because the exporter merged equal nodes before its graph could be seen.

In PyTorch a call reads, and returns, what it was given and what it or its callees made. A call that reads or returns a
value of another one without having been given it made an equal one itself, and the exporter kept just one of the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from modelexport.attribution import Attribution, Kind, recorded_by_exporter
from modelexport.hierarchy import CallId, CallTree, TensorInfo

_SEVERAL_CALLS = 0.95


def with_sharers(
    graph: ir.Graph,
    recorded: Mapping[ir.Node, CallId],
    calls: CallTree,
    bereft: Collection[CallId],
    infos: Mapping[str, TensorInfo],
) -> dict[ir.Node, Attribution]:
    """The attribution of each node, with the calls that shared it.

    Args:
        graph: The graph.
        recorded: The call of each node for which there is one.
        calls: The calls, with the boundaries that were recorded.
        bereft: The calls that lost nodes to equal ones of others. One that did not, and returns a value it did not
            make, has kept that from an earlier time.
        infos: Shape and type of tensors, where they are known.
    """
    finder = _SharerFinder(calls, bereft)
    sharers: dict[ir.Node, set[CallId]] = {}
    for node in reversed(graph):
        owner = recorded.get(node)
        if owner is None:
            continue
        found: set[CallId] = set()
        for value in node.outputs:
            found |= finder.returning(value.name, owner)
            info = infos.get(value.name or "")
            for use in value.uses():
                reader = recorded.get(use.node)
                # Whoever shares the reader made what it reads, too.
                for call in (*(() if reader is None else (reader,)), *sharers.get(use.node, ())):
                    found |= finder.reading(value.name, call, owner, info)
        sharers[node] = found
    return {node: _attribution(call, sharers.get(node, set())) for node, call in recorded.items()}


class _SharerFinder:
    def __init__(self, calls: CallTree, bereft: Collection[CallId]) -> None:
        self._calls = calls
        self._bereft = bereft
        self._chains = {call.id: frozenset(calls.chain(call.id)) for call in calls}
        self._given = {call.id: {tensor.tensor for tensor in call.inputs} for call in calls}
        # Of the arguments whose tensors are not known, what is known of them.
        self._unknown = {call.id: [tensor.info for tensor in call.inputs if tensor.tensor is None] for call in calls}
        self._made = {call.id: {tensor.tensor for tensor in call.outputs} for call in calls}
        self._returned: dict[str | None, set[CallId]] = {}
        for call in calls:
            for tensor in call.outputs:
                self._returned.setdefault(tensor.tensor, set()).add(call.id)

    def returning(self, tensor: str | None, owner: CallId) -> set[CallId]:
        """The calls that return the tensor though they were not given it."""
        returned = self._returned.get(tensor, set())
        # A call that returns what a callee returned did not make it.
        callers = {caller for call in returned for caller in self._chains[call] - {call}}
        return {
            call
            for call in returned - callers
            if call in self._bereft and self._is_apart(call, owner) and self._given[call].isdisjoint({tensor, None})
        }

    def reading(self, tensor: str | None, reader: CallId, owner: CallId, info: TensorInfo | None) -> set[CallId]:
        """The call that made a tensor like this one for the reader; none where the reader has it from the owner."""
        if owner in self._chains[reader]:
            return self._reading_inside(tensor, reader, owner, info)
        call: CallId | None = reader
        while call is not None and owner not in self._chains[call]:
            if call in self._chains[owner]:
                # One that called the owner has what was returned to it, and nothing else of what went on inside.
                returned = self._made[self._callee(call, owner)]
                return set() if tensor in returned or None in returned else {call}
            if tensor not in self._given[call]:
                return set() if self._may_have_been_given(tensor, call, owner, info) else {call}
            call = self._calls[call].parent
        return set()

    def _reading_inside(
        self, tensor: str | None, reader: CallId, owner: CallId, info: TensorInfo | None
    ) -> set[CallId]:
        """The same for a reader that the owner called, and that is known to have lost a node."""
        for call in self._calls.chain(reader):
            if call == owner:
                break
            if tensor not in self._given[call]:
                may_have = call not in self._bereft or self._may_have_been_given(tensor, call, owner, info)
                return set() if may_have else {call}
        return set()

    def _may_have_been_given(self, tensor: str | None, call: CallId, owner: CallId, info: TensorInfo | None) -> bool:
        """Whether a call may have a tensor from others that is not among its known arguments.

        A callee that returned it made it. An argument whose tensor is not known may be this very one if it is alike,
        and if the owner's callers were given it to pass it on.
        """
        if any(call in self._chains[other] for other in self._returned.get(tensor, ())):
            return True
        if owner not in self._chains[call]:
            around = next(caller for caller in self._calls.chain(owner) if caller in self._chains[call])
            returned = self._made[self._callee(around, owner)]
            if tensor not in returned and None not in returned:
                return False
        return any(info is None or other is None or other == info for other in self._unknown[call])

    def _callee(self, caller: CallId, call: CallId) -> CallId:
        """The call that `caller` made and that `call` is, or ran inside of."""
        chain = self._calls.chain(call)
        return chain[chain.index(caller) - 1]

    def _is_apart(self, call: CallId, owner: CallId) -> bool:
        """Whether neither of the two ran inside the other."""
        return call not in self._chains[owner] and owner not in self._chains[call]


def _attribution(call: CallId, sharers: set[CallId]) -> Attribution:
    if not sharers:
        return recorded_by_exporter(call)
    reason = "equal nodes of several calls became one; this call's came first"
    return Attribution(call, Kind.MERGED, _SEVERAL_CALLS, reason, tuple(sorted(sharers)))
