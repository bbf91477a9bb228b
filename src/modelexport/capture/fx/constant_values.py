"""Values that depend on no input, computed while `torch.export` traces, so that Python code of the model can read them.

torch traces tensors without values. A size that the model computes from a buffer, or from a mask of ones that it
created, is unknown then, and code that depends on it cannot be traced. But such a value is the same for all inputs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from modelexport.capture import SourcePlace, find_place, module_paths, running_frames
from modelexport.torch_support.private import (
    leaves_of,
    map_leaves,
    storage_id,
    tensors_among,
    written_arguments,
)
from modelexport.torch_support.private_export import is_fake
from modelexport.torch_support.private_fx import Tracer, not_traced, tracer_of, tracing_through

# Values that Python code reads are small, and so are the masks and indexes that they come from.
_MOST_ELEMENTS = 1 << 20
# An operator that returns a number, or tensors whose sizes are values.
_IS_READ = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
_MOST_PLACES = 3
_FIXED = "values that depend on no input are constants of the graph"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ConstantValues:
    """The values of the traced tensors that depend on no input: buffers, new tensors, and results of both.

    Attributes:
        places: The source lines that read such values.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.places: dict[SourcePlace, None] = {}
        self._model = model
        self._paths = module_paths(model)
        # Copies, because the traced operators that write into buffers write into these values.
        self._buffers = {
            name: buffer.detach().clone()
            for name, buffer in model.named_buffers(remove_duplicate=False)
            if not is_fake(buffer) and buffer.numel() <= _MOST_ELEMENTS
        }
        self._tracer: Tracer | None = None
        self._values: Any = WeakTensorKeyDictionary()

    def known(self) -> contextlib.AbstractContextManager[None]:
        """Within the context, `torch.export` traces with these values known."""
        return tracing_through(self._trace)

    def notes(self) -> tuple[str, ...]:
        """Return the note for the user: the source lines whose values are constants of the graph."""
        if not self.places:
            return ()
        lines = list({(place.file, place.line): str(place) for place in reversed(self.places)}.values())[::-1]
        more = f" and {len(lines) - _MOST_PLACES} more lines" if len(lines) > _MOST_PLACES else ""
        return (f"{_FIXED} at {'; '.join(lines[:_MOST_PLACES])}{more}",)

    def _trace(
        self,
        original: Callable[..., Any],
        mode: Any,
        func: Any,
        pre_dispatch: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Trace an operator, and compute it too where its arguments are known."""
        self._begin(tracer_of(mode))
        known = self._known_arguments(func, args, kwargs)
        if known is not None and not _IS_READ.isdisjoint(func.tags):
            values = self._compute(func, known)
            if values is not None:
                self._record_read()
                return map_leaves(lambda value: self._as_constant(original, mode, pre_dispatch, value), values)
        traced = original(mode, func, pre_dispatch, args, kwargs)
        results = tensors_among(traced)
        if known is not None and all(_is_small(tensor) for tensor in results):
            values = tensors_among(self._compute(func, known))
            if len(values) == len(results):
                self._values.update(zip(results, values, strict=True))
                return traced
        self._forget(written_arguments(func, args, kwargs))
        return traced

    def _as_constant(self, original: Callable[..., Any], mode: Any, pre_dispatch: bool, value: Any) -> Any:
        """Trace a value as torch traces the result of `torch.tensor`; a number is returned as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        traced = original(mode, torch.ops.aten.lift_fresh_copy.default, pre_dispatch, (value,), {})
        self._values[traced] = value
        return traced

    def _begin(self, tracer: Tracer) -> None:
        """Take the values of buffers for a new trace; while it runs, the model's buffers are tensors without values."""
        if tracer is self._tracer:
            return
        self._tracer = tracer
        self._values = WeakTensorKeyDictionary()
        with not_traced():
            copies = {name: value.clone() for name, value in self._buffers.items()}
        for name, buffer in self._model.named_buffers(remove_duplicate=False):
            if name in copies:
                self._values[buffer] = copies[name]

    def _known_arguments(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments with values in place of tensors; None where one is not known."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            return None
        for leaf in leaves_of((args, kwargs)):
            if isinstance(leaf, _SYMBOLIC) or (isinstance(leaf, torch.Tensor) and not self._is_known(leaf)):
                return None
        found: tuple[tuple[Any, ...], dict[str, Any]] = map_leaves(
            lambda leaf: self._values[leaf] if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
        )
        return found

    def _is_known(self, tensor: torch.Tensor) -> bool:
        if tensor not in self._values and not is_fake(tensor) and tensor.numel() <= _MOST_ELEMENTS:
            # A tensor that is an attribute, but no buffer.
            with not_traced():
                self._values[tensor] = tensor.detach().clone()
        return tensor in self._values

    def _compute(self, func: Any, known: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """The result of an operator; None where it fails."""
        args, kwargs = known
        with not_traced():
            try:
                return func(*args, **kwargs)
            except Exception:  # noqa: BLE001  the trace shows whether it matters
                return None

    def _forget(self, written: list[torch.Tensor]) -> None:
        """Forget the values of tensors into which something unknown was written, and of all that share their memory."""
        memory = {storage_id(tensor) for tensor in written}
        for tensor in [tensor for tensor in self._values if memory and storage_id(tensor) in memory]:
            del self._values[tensor]

    def _record_read(self) -> None:
        place = find_place(running_frames(sys._getframe(1)), self._paths)
        if place is not None:
            self.places[place] = None


def _is_small(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape) and tensor.numel() <= _MOST_ELEMENTS
