"""What a model is made of: its modules, the calls of their `forward`, and the tensors that enter and leave."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

ROOT_PATH = ""
# Modules around a module, calls around a call: Python's own stack ends before.
MAX_DEPTH = 500
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


class TensorInfo(msgspec.Struct, frozen=True):
    """Shape and element type of a tensor; an axis is a number or the name of a dynamic dimension."""

    shape: tuple[int | str, ...]
    dtype: str


class ForwardArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a module's `forward`, as `inspect.signature` gives it."""

    name: str
    kind: str = "positional_or_keyword"
    required: bool = True


class ModuleInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one module without running it.

    Attributes:
        path: The canonical path: the first name in `named_modules()`. The root's is empty.
        class_name: The class as people write it.
        qualified_class: The class with the Python module that defines it.
        aliases: The other names that reach the same module.
        forward_arguments: The arguments of `forward`.
        parameters: The module's own parameters, by local name; those of its children are theirs.
        buffers: The module's own buffers, by local name.
        children: Child name to class name.
        tied_parameters: Own parameters that an earlier module holds too: local name to that one's full name.
    """

    path: str
    class_name: str
    qualified_class: str
    aliases: tuple[str, ...] = ()
    forward_arguments: tuple[ForwardArgument, ...] = ()
    parameters: dict[str, TensorInfo] = {}
    buffers: dict[str, TensorInfo] = {}
    children: dict[str, str] = {}
    tied_parameters: dict[str, str] = {}


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


def parent_path(path: str) -> str | None:
    """The path of the enclosing module, or None for the root."""
    if path == ROOT_PATH:
        return None
    return path.rpartition(".")[0]


def ancestor_paths(path: str) -> Iterator[str]:
    """The paths that enclose `path`, nearest first, ending with the root; `path` itself is not among them."""
    current = parent_path(path)
    while current is not None:
        yield current
        current = parent_path(current)


def contains(outer: str, inner: str) -> bool:
    """Whether the module at `outer` is the one at `inner` or encloses it."""
    return outer == ROOT_PATH or inner == outer or inner.startswith(outer + ".")


def common_ancestor(first: str, second: str) -> str:
    """The path of the smallest module that contains both."""
    if contains(first, second):
        return first
    return next(path for path in ancestor_paths(first) if contains(path, second))


class ModuleTree:
    """The modules of a model by canonical path, in the order of `named_modules()`."""

    def __init__(self, modules: Mapping[str, ModuleInfo]) -> None:
        self._modules = dict(modules)
        self._canonical = {name: info.path for info in self._modules.values() for name in (info.path, *info.aliases)}

    def __contains__(self, path: object) -> bool:
        return path in self._modules

    def __getitem__(self, path: str) -> ModuleInfo:
        return self._modules[path]

    def __iter__(self) -> Iterator[ModuleInfo]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def canonical(self, name: str) -> str | None:
        """The canonical path of the module that `name` reaches, or None where there is none."""
        return self._canonical.get(name)


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
