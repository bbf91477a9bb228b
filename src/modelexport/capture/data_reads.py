"""Find where a model's code reads tensor values into Python, which tracing replaces by constants.

PyTorch runs the model for this. The tracer's own warnings do not distinguish a value from a size, and some reads cause
no warning (`torch.equal`, a tensor as an index of a list).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from modelexport.capture.diagnosis import in_one_line
from modelexport.capture.source_places import SourcePlace, find_place, module_paths, running_frames
from modelexport.torch_support import copied_inputs, mha_fast_path_disabled, weights_restored
from modelexport.torch_support.private import dispatch_mode, leaves_of, storage_id, storage_reference, tensors_among

# Functions that copy values out of a tensor without an operator that a dispatch mode sees.
_COPYING_FUNCTIONS = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.tensor,
    torch.as_tensor,
    torch.Tensor.new_tensor,
)


def find_data_reads(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[SourcePlace, ...] | str:
    """Run the model once, and find where its Python code reads values that depend on the inputs or on random numbers.

    The inputs are copied, and the buffers restored.

    Returns:
        The source lines in the order in which they first ran; where this run of the model failed, the error as text.
    """
    watch = _DependenceWatch(module_paths(model))
    try:
        copied_args, copied_kwargs = copied_inputs(args, kwargs)
        watch.mark((copied_args, copied_kwargs))
        with contextlib.ExitStack() as stack:
            stack.enter_context(weights_restored(model))
            stack.enter_context(mha_fast_path_disabled())
            stack.enter_context(torch.no_grad())
            stack.enter_context(_CopyWatch(watch))
            stack.enter_context(dispatch_mode(watch.run))
            model(*copied_args, **copied_kwargs)
    except Exception as error:  # noqa: BLE001  the export has succeeded without this run
        return in_one_line(error)
    return tuple(watch.places)


class _DependenceWatch:
    """Tracks the tensors that depend on the inputs, and records operators that return their values to Python."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self.places: dict[SourcePlace, None] = {}
        self._paths = paths
        self._dependent: dict[int, object] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and mark its results where they depend on the inputs."""
        dependent = self.is_dependent((args, kwargs)) or torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        result = func(*args, **kwargs)
        if dependent:
            self.mark(result)
            if any(isinstance(leaf, bool | int | float | complex) for leaf in leaves_of(result)):
                self.record_read()
        return result

    def mark(self, values: object) -> None:
        """Record that these tensors depend on the inputs."""
        self._dependent.update(map(_memory, tensors_among(values)))

    def is_dependent(self, values: object) -> bool:
        """Whether one of these tensors depends on the inputs."""
        return any(_memory(tensor)[0] in self._dependent for tensor in tensors_among(values))

    def record_read(self) -> None:
        """Record that the running source line reads a value."""
        place = find_place(running_frames(sys._getframe(1)), self._paths)
        if place is not None:
            self.places[place] = None


def _memory(tensor: torch.Tensor) -> tuple[int, object]:
    """Return the id of a tensor's memory, and an object that keeps this id from being used again."""
    identity = storage_id(tensor)
    # A wrapper around other tensors, or one of an unusual layout, has no memory of its own.
    return (id(tensor), tensor) if identity is None else (identity, storage_reference(tensor))


class _CopyWatch(TorchFunctionMode):
    """Records calls of functions that copy values out of tensors."""

    def __init__(self, watch: _DependenceWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _COPYING_FUNCTIONS and self._watch.is_dependent(args):
            self._watch.record_read()
        return func(*args, **(kwargs or {}))
