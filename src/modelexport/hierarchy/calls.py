"""Module calls: one run of a module's `forward`, the tensors that enter and leave it, and the tree of calls."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from modelexport.hierarchy.modules import ROOT_PATH, TensorInfo

# Not any number of digits: Python refuses to read one of thousands.
_INDEXED = re.compile(r"@[0-9]{1,18}$")


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class CallId:
    """One run of a module's `forward`: the module's canonical path and how many calls came before.

    Written ``path``, ``path@1``, ``path@2`` for the first, second and third call. Where the path itself ends
    like an index (a child that someone named ``a@1``), the index is always written, so that the text can be
    read back without the module tree.
    """

    path: str
    index: int = 0

    def __str__(self) -> str:
        if self.index or _INDEXED.search(self.path):
            return f"{self.path}@{self.index}"
        return self.path

    @classmethod
    def parse(cls, text: str) -> CallId:
        """Read what `str` wrote."""
        if _INDEXED.search(text):
            path, _, index = text.rpartition("@")
            return cls(path, int(index))
        return cls(text)


ROOT_CALL = CallId(ROOT_PATH)


class BoundaryTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that enters or leaves a module call.

    Attributes:
        name: The forward argument or the result's field, with the way to a nested tensor: ``states.0.key``.
        tensor: The tensor of the ONNX graph that holds it, or None where the graph no longer has it.
        info: Its shape and type, where they were seen.
        stand_in: For an argument that the graph no longer has: the tensor that all its consumers consume in its place,
            each by the same operation. Put back in that place, the argument gives the same results.
    """

    name: str
    tensor: str | None = None
    info: TensorInfo | None = None
    stand_in: str | None = None


class ModuleCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call with the call that made it and its boundary; `parent` is None for the root's."""

    path: str
    index: int = 0
    parent: CallId | None = None
    inputs: tuple[BoundaryTensor, ...] = ()
    outputs: tuple[BoundaryTensor, ...] = ()

    @property
    def id(self) -> CallId:
        """The call's identity."""
        return CallId(self.path, self.index)


class CallTree:
    """The module calls of one forward pass, callers before callees. The root's is always among them."""

    def __init__(self, calls: Mapping[CallId, ModuleCall]) -> None:
        self._calls = {ROOT_CALL: ModuleCall(ROOT_PATH), **calls}

    def __contains__(self, call: object) -> bool:
        return call in self._calls

    def __getitem__(self, call: CallId) -> ModuleCall:
        return self._calls[call]

    def __iter__(self) -> Iterator[ModuleCall]:
        return iter(self._calls.values())

    def __len__(self) -> int:
        return len(self._calls)

    def chain(self, call: CallId) -> list[CallId]:
        """`call` and its callers, innermost first."""
        chain: list[CallId] = []
        current: CallId | None = call
        while current is not None:
            chain.append(current)
            known = self._calls.get(current)
            current = known.parent if known is not None else None
        return chain

    def common_caller(self, first: CallId, second: CallId) -> CallId:
        """The innermost call that both ran inside of, or are."""
        outer = set(self.chain(first))
        return next((call for call in self.chain(second) if call in outer), ROOT_CALL)

    def innermost_around(self, calls: Iterable[CallId]) -> CallId:
        """The innermost call that all of these ran inside of, or are."""
        remaining = iter(sorted(calls))
        around = next(remaining, ROOT_CALL)
        for call in remaining:
            around = self.common_caller(around, call)
        return around

    def encloses(self, outer: CallId, inner: CallId) -> bool:
        """Whether `inner` is `outer` or ran inside of it."""
        return outer in self.chain(inner)
