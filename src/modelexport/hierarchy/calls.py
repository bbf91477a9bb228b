"""Module calls: one run of a module's `forward`, its input and output tensors, and the tree of calls."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from modelexport.hierarchy.modules import ROOT_PATH, TensorInfo

# Limited, because Python refuses to parse a number of thousands of digits.
_INDEXED = re.compile(r"@[0-9]{1,18}$")


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class CallId:
    """The id of a module call: the module's canonical path and the number of its earlier calls.

    Written ``path``, ``path@1``, ``path@2`` for the first, second and third call. Where the path itself ends
    like an index (a child named ``a@1``), the index is always written, so that the text can be parsed without the
    module tree.
    """

    path: str
    index: int = 0

    def __str__(self) -> str:
        if self.index or _INDEXED.search(self.path):
            return f"{self.path}@{self.index}"
        return self.path

    @classmethod
    def parse(cls, text: str) -> CallId:
        """Parse the result of `str`."""
        if _INDEXED.search(text):
            path, _, index = text.rpartition("@")
            return cls(path, int(index))
        return cls(text)


ROOT_CALL = CallId(ROOT_PATH)


class BoundaryTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output tensor of a module call.

    Attributes:
        name: The forward argument or the result's field, with the path to a nested tensor: ``states.0.key``.
        tensor: Its tensor in the ONNX graph, or None if the rewritten graph no longer has it.
        info: Its shape and type, if they were recorded.
        stand_in: For an argument that the graph no longer has: the tensor that all its consumers consume in its place,
            each by the same operation. With the argument in that place, the results are the same.
    """

    name: str
    tensor: str | None = None
    info: TensorInfo | None = None
    stand_in: str | None = None


class ModuleCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call with its caller, inputs and outputs; `parent` is None for the root call."""

    path: str
    index: int = 0
    parent: CallId | None = None
    inputs: tuple[BoundaryTensor, ...] = ()
    outputs: tuple[BoundaryTensor, ...] = ()

    @property
    def id(self) -> CallId:
        """The id of the call."""
        return CallId(self.path, self.index)


class CallTree:
    """The module calls of one forward pass, callers before callees. The root call is always included."""

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
        """The innermost call that encloses both, or is one of them."""
        outer = set(self.chain(first))
        return next((call for call in self.chain(second) if call in outer), ROOT_CALL)

    def innermost_around(self, calls: Iterable[CallId]) -> CallId:
        """The innermost call that encloses all of these, or is one of them."""
        remaining = iter(sorted(calls))
        around = next(remaining, ROOT_CALL)
        for call in remaining:
            around = self.common_caller(around, call)
        return around

    def encloses(self, outer: CallId, inner: CallId) -> bool:
        """Whether `inner` is `outer` or ran inside of it."""
        return outer in self.chain(inner)
