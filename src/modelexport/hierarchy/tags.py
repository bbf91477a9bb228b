"""Compute the tag of a module call, and which modules are visible in tags.

A tag only displays a call: hiding a class changes tags and nothing else. Tags depend only on the module tree and
the call, so they are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from modelexport.errors import InputError
from modelexport.hierarchy.calls import CallId, CallTree
from modelexport.hierarchy.modules import ROOT_PATH, ModuleInfo, ModuleTree, ancestor_paths

DEFAULT_TORCH_NN_EXCEPTIONS = (
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
)

# Escapes of the characters that separate the parts of a tag.
_ESCAPES = str.maketrans({"%": "%25", "/": "%2F", "@": "%40", ".": "%2E"})


class TagView(msgspec.Struct, frozen=True):
    """Which modules are visible.

    Attributes:
        torch_nn_exceptions: The visible torch.nn classes: names, ``"all"`` or ``"none"``.
        include: Patterns of qualified class names that are visible even if torch.nn filtering hides them.
        exclude: Patterns of qualified class names that are hidden, with priority over `include`.
    """

    torch_nn_exceptions: tuple[str, ...] | Literal["all", "none"] = DEFAULT_TORCH_NN_EXCEPTIONS
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        torch_nn_exceptions: Iterable[str] | str | None = None,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
    ) -> TagView:
        """Create a view from arguments of the caller; None means the default exceptions."""
        exceptions: tuple[str, ...] | Literal["all", "none"]
        if torch_nn_exceptions is None:
            exceptions = DEFAULT_TORCH_NN_EXCEPTIONS
        elif torch_nn_exceptions == "all":
            exceptions = "all"
        elif torch_nn_exceptions == "none":
            exceptions = "none"
        elif isinstance(torch_nn_exceptions, str):
            raise InputError(
                f"torch_nn_exceptions={torch_nn_exceptions!r} is neither 'all' nor 'none': "
                f"give class names as a list, e.g. [{torch_nn_exceptions!r}]"
            )
        else:
            exceptions = _names("torch_nn_exceptions", torch_nn_exceptions)
        return cls(exceptions, _names("include", include), _names("exclude", exclude))

    def shows(self, module: ModuleInfo) -> bool:
        """Whether the module is visible. The root always is."""
        if module.path == ROOT_PATH:
            return True
        if _matches(module.qualified_class, self.exclude):
            return False
        if _matches(module.qualified_class, self.include):
            return True
        if not is_torch_nn(module.qualified_class):
            return True
        if isinstance(self.torch_nn_exceptions, str):
            return self.torch_nn_exceptions == "all"
        return module.class_name in self.torch_nn_exceptions


def _names(argument: str, given: object) -> tuple[str, ...]:
    """Check a list of names; a single string would be split into its characters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"{argument}={given!r} is not a list of names: write {argument}=[{given!r}]")
    names = tuple(given)
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise InputError(f"{argument} has {wrong!r}, which is not a string: give class names or patterns")
    return names


def is_torch_nn(qualified_class: str) -> bool:
    """Whether torch.nn defines the class."""
    return qualified_class.startswith("torch.nn.")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class TagScheme:
    """The tags of a model's modules and calls under one view."""

    def __init__(self, tree: ModuleTree, view: TagView) -> None:
        self._segments = _segments(tree, view)

    def is_visible(self, path: str) -> bool:
        """Whether the module at this canonical path has a segment of its own."""
        return path in self._segments

    def tag(self, call: CallId, calls: CallTree) -> str:
        """The tag of a call; for a hidden module the tag of its nearest visible ancestor.

        Each segment has the index of the running call, so all tags below ``/Net/Block@1`` have that prefix. A module
        that encloses this one in the tree without calling it (a shared module that another module calls) has no index.
        """
        running: dict[str, int] = {}
        for caller in calls.chain(call):
            running.setdefault(caller.path, caller.index)
        visible = [path for path in (call.path, *ancestor_paths(call.path)) if path in self._segments]
        indices = [(self._segments[path], running.get(path, 0)) for path in reversed(visible)]
        return "".join(f"/{segment}@{index}" if index else f"/{segment}" for segment, index in indices)

    def module_tag(self, path: str) -> str:
        """The tag of a module regardless of calls; for a hidden one the tag of its nearest visible ancestor."""
        return self.tag(CallId(path), CallTree({}))


def _segments(tree: ModuleTree, view: TagView) -> dict[str, str]:
    """The segment of each visible module: its class, and a suffix that distinguishes siblings of that class."""
    visible = {module.path for module in tree if view.shows(module)}
    relative: dict[str, tuple[str, ...]] = {}
    families: dict[tuple[str, str], list[str]] = {}
    for module in tree:
        if module.path not in visible or module.path == ROOT_PATH:
            continue
        above = next(path for path in ancestor_paths(module.path) if path in visible)
        below = module.path[len(above) + 1 :] if above else module.path
        relative[module.path] = tuple(below.split("."))
        families.setdefault((above, module.class_name), []).append(module.path)

    segments = {ROOT_PATH: _escape(tree[ROOT_PATH].class_name)}
    for (_, class_name), members in families.items():
        suffixes = _distinctive_suffixes([relative[path] for path in members])
        for path, suffix in zip(members, suffixes, strict=True):
            segments[path] = ".".join(_escape(part) for part in (class_name, *suffix))
    return segments


def _distinctive_suffixes(names: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """For each name its shortest suffix that no other name ends with; a trailing number is always kept."""
    if len(names) == 1:
        return [names[0][-1:] if names[0][-1].isdigit() else ()]
    suffixes: list[tuple[str, ...]] = [()] * len(names)
    # Names that share their last parts, and how many. A name can have hundreds of parts, so no suffix is built twice.
    waiting: list[tuple[int, list[int]]] = [(0, list(range(len(names))))]
    while waiting:
        shared, members = waiting.pop()
        groups: dict[str | None, list[int]] = {}
        for member in members:
            name = names[member]
            groups.setdefault(name[-shared - 1] if shared < len(name) else None, []).append(member)
        for part, group in groups.items():
            if part is not None and len(group) > 1:
                waiting.append((shared + 1, group))
            else:
                suffixes[group[0]] = names[group[0]][-shared - 1 :]
    return suffixes


def _escape(part: str) -> str:
    return part.translate(_ESCAPES)
