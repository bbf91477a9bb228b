"""Runs a part of a model that would not have run, and leaves no trace of it: the branch that was not taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from modelexport.errors import ModelExportError
from modelexport.torch_support.state_guard import AttributeSnapshot, memory_of, overwritten, preserved_state


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
        if not _memory(overwritten(func, args, kwargs)) <= self._made:
            raise EffectError(f"{func} writes to a tensor that was there before")

    def note(self, results: object, given: object) -> None:
        """To be told what an operator returned, and what it was given: new is the memory that it was not given."""
        self._made |= _memory(results) - _memory(given)


def try_out(model: torch.nn.Module, action: Callable[[], object]) -> bool:
    """Run something that may as well not have run: the model's attributes and the random state stay as they were.

    Returns:
        Whether it came to an end, without having changed an attribute of a module.
    """
    attributes = AttributeSnapshot(model)
    with preserved_state(model):
        try:
            action()
        except Exception:  # noqa: BLE001  a branch that is not taken may do anything where it makes no sense
            done = False
        else:
            done = True
        finally:
            changed = attributes.restore()
    return done and not changed


def _memory(value: object) -> set[int]:
    found = set()
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            memory = memory_of(leaf)
            found.add(id(leaf) if memory is None else memory._cdata)
    return found
