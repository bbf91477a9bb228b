"""Dry run: runs a part of a model that would not have run, such as the branch not taken, without side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from modelexport.errors import ModelExportError, UnsupportedLibraryError
from modelexport.torch_support.private import storage_id, tensors_among, written_arguments
from modelexport.torch_support.state_guard import preserved_state


class SideEffectError(ModelExportError):
    """A dry run would have changed a tensor that existed before it."""


class WriteGuard:
    """Distinguishes tensors created in a dry run from those that existed before, which it must not write to."""

    def __init__(self) -> None:
        self._created: set[int] = set()

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check an operator before it runs.

        Raises:
            SideEffectError: It writes to a tensor that existed before the dry run.
        """
        if not _memory(written_arguments(func, args, kwargs)) <= self._created:
            raise SideEffectError(f"{func} writes to a tensor that existed before the dry run")

    def record(self, outputs: object, inputs: object) -> None:
        """Record the outputs of an operator: memory that is not among its inputs is new."""
        self._created |= _memory(outputs) - _memory(inputs)


def run_without_effects(model: torch.nn.Module, action: Callable[[], object]) -> bool:
    """Run an action, and restore the model's attributes and the random state.

    Returns:
        Whether it ended without an error, and without a change to an attribute of a module.
    """
    with preserved_state(model) as state:
        try:
            action()
        except UnsupportedLibraryError:
            raise
        except Exception:  # noqa: BLE001  a branch that is not taken may fail in any way
            return False
    return not state.changed


def _memory(value: object) -> set[int]:
    ids = ((tensor, storage_id(tensor)) for tensor in tensors_among(value))
    return {id(tensor) if storage is None else storage for tensor, storage in ids}
