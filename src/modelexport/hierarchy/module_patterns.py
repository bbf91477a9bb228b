"""Find the modules that a user names as boundaries: by path, by class, or by a function."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable

from modelexport.errors import InputError
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree

CLASS_PREFIX = "class:"

Boundaries = Iterable[str | type] | Callable[[ModuleInfo], object]


def boundary_paths(tree: ModuleTree, boundaries: Boundaries) -> frozenset[str]:
    """The canonical paths of the modules that are boundaries.

    Args:
        tree: The modules.
        boundaries: Module paths (``encoder.layer.0``, with ``*`` and ``?`` as in file names), classes (themselves, or
            ``class:BertLayer`` by name or qualified name), or a function that returns whether a module is one.

    Raises:
        InputError: One of them names no module of this model.
    """
    if callable(boundaries):
        return frozenset(module.path for module in tree if boundaries(module))
    if isinstance(boundaries, str) or not isinstance(boundaries, Iterable):
        raise InputError(f"boundaries={boundaries!r} is not a list: give a list of module paths or classes")
    found: set[str] = set()
    for boundary in boundaries:
        if not isinstance(boundary, str | type):
            raise InputError(f"boundary {boundary!r} is neither a module path nor a class: give one of them")
        named = {module.path for module in tree if _is_named(module, boundary)}
        if not named:
            raise InputError(
                f"boundary {boundary!r} names no module of this model: give a module path, "
                f"or {CLASS_PREFIX}Name for all modules of a class"
            )
        found |= named
    return frozenset(found)


def _is_named(module: ModuleInfo, boundary: str | type) -> bool:
    if isinstance(boundary, type):
        return module.qualified_class == f"{boundary.__module__}.{boundary.__qualname__}"
    if boundary.startswith(CLASS_PREFIX):
        pattern = boundary.removeprefix(CLASS_PREFIX)
        return any(fnmatch.fnmatchcase(name, pattern) for name in (module.class_name, module.qualified_class))
    return any(fnmatch.fnmatchcase(path, boundary) for path in (module.path, *module.aliases))
