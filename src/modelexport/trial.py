"""Runs a part of a model that would not have run, and leaves no trace of it: the branch that was not taken."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.errors import ModelExportError
from modelexport.preserve import preserved_state


class EffectError(ModelExportError):
    """What was tried out would have changed something that was there before."""


class Trial:
    """Tells what a trial made from what was there before it, which it may not write to."""

    def __init__(self) -> None:
        self._made: set[int] = set()

    def check(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """To be asked before an operator runs.

        Raises:
            EffectError: It writes to a tensor that was there before.
        """
        schema = getattr(func, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        given = {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **kwargs}
        written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if not _memory([given.get(name) for name in written]) <= self._made:
            raise EffectError(f"{func} writes to a tensor that was there before")

    def note(self, results: object, given: object) -> None:
        """To be told what an operator returned, and what it was given: new is the memory that it was not given."""
        self._made |= _memory(results) - _memory(given)


def try_out(model: torch.nn.Module, action: Callable[[], object]) -> bool:
    """Run something that may as well not have run: the model's attributes and the random state stay as they were.

    Returns:
        Whether it came to an end, without having changed an attribute of a module.
    """
    kept = [_Attributes(module) for module in model.modules()]
    with preserved_state(model):
        try:
            action()
        except Exception:  # noqa: BLE001  a branch that is not taken may do anything where it makes no sense
            done = False
        else:
            done = True
        finally:
            changed = [attributes.restore() for attributes in kept]
    return done and not any(changed)


class _Attributes:
    """What a module holds, and what the dicts, lists and sets hold that it has as attributes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._own = dict(module.__dict__)
        self._inner = {name: copy.copy(value) for name, value in self._own.items() if type(value) in _CONTAINERS}

    def restore(self) -> bool:
        """Put everything back; whether something had changed."""
        changed = not _is_same(self._module.__dict__, self._own)
        if changed:
            self._module.__dict__.clear()
            self._module.__dict__.update(self._own)
        for name, before in self._inner.items():
            now = self._own[name]
            if not _is_same(now, before):
                changed = True
                now.clear()
                (now.extend if isinstance(now, list) else now.update)(before)
        return changed


_CONTAINERS = (dict, list, set)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two containers hold the very same objects."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _memory(value: object) -> set[int]:
    found = set()
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            try:
                found.add(leaf.untyped_storage()._cdata)
            except (RuntimeError, NotImplementedError):
                # Nothing of its own in memory: a wrapper around other tensors, or one of an unusual layout.
                found.add(id(leaf))
    return found
