"""The modules of a model: their classes, parameters and tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

ROOT_PATH = ""
# The deepest nesting of modules and of calls; Python's own stack is less deep.
MAX_DEPTH = 500
# The most axes of a tensor, as in numpy, and the most elements.
MAX_RANK = 64
MAX_SIZE = 2**63 - 1

Axis = Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)] | str


class TensorInfo(msgspec.Struct, frozen=True):
    """Shape and element type of a tensor; an axis is a number or the name of a dynamic dimension."""

    shape: Annotated[tuple[Axis, ...], msgspec.Meta(max_length=MAX_RANK)]
    dtype: str


class ForwardArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a module's `forward`, as `inspect.signature` reports it."""

    name: str
    kind: str = "positional_or_keyword"
    required: bool = True


class ModuleInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One module, described without running it.

    Attributes:
        path: The canonical path: the first name in `named_modules()`. The root's is empty.
        class_name: The name of the class.
        qualified_class: The class with the Python module that defines it.
        aliases: The other names that reach the same module.
        forward_arguments: The arguments of `forward`.
        parameters: The module's own parameters, by local name, without those of its children.
        buffers: The module's own buffers, by local name.
        children: Child name to class name.
        tied_parameters: Own parameters that an earlier module has too: local name to the full name there.
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


def parent_path(path: str) -> str | None:
    """The path of the enclosing module, or None for the root."""
    if path == ROOT_PATH:
        return None
    return path.rpartition(".")[0]


def ancestor_paths(path: str) -> Iterator[str]:
    """The paths that enclose `path`, nearest first, ending with the root, without `path` itself."""
    current = parent_path(path)
    while current is not None:
        yield current
        current = parent_path(current)


def contains(outer: str, inner: str) -> bool:
    """Whether the module at `outer` is the one at `inner` or encloses it."""
    return outer == ROOT_PATH or inner == outer or inner.startswith(outer + ".")


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
        """The canonical path of the module that `name` reaches, or None."""
        return self._canonical.get(name)
