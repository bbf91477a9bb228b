"""Find where a model's code reads tensor values into Python, which tracing replaces by constants, and if they matter.

PyTorch runs the model for this. The tracer's own warnings do not distinguish a value from a size, and some reads cause
no warning (`torch.equal`, a tensor as an index of a list).
"""

from __future__ import annotations

import dis
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from modelexport.capture.diagnosis import in_one_line
from modelexport.capture.source_places import SourcePlace, find_place, module_paths, running_frames
from modelexport.torch_support import copied_inputs, flattened_results, isolated_run, mha_fast_path_disabled
from modelexport.torch_support.private import (
    dispatch_mode,
    leaves_of,
    map_leaves,
    storage_id,
    storage_reference,
    tensors_among,
)

# Functions that copy values out of a tensor without an operator that a dispatch mode sees.
_COPYING_FUNCTIONS = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.tensor,
    torch.as_tensor,
    torch.Tensor.new_tensor,
)


# The model runs up to five times for each of them.
_MOST_READS = 30
# The operator, and its arguments that are not tensors.
_Operator = tuple[Any, str]
_RAISE = dis.opmap["RAISE_VARARGS"]


def find_data_reads(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool = False
) -> tuple[SourcePlace, ...] | str:
    """Run the model once, and find where its Python code reads values that depend on the inputs or on random numbers.

    The inputs are copied, and the model is restored.

    Returns:
        The source lines in the order in which they first ran; where this run of the model failed, the error as text.
    """
    watch = _DependenceWatch(module_paths(model))
    try:
        watch.run_model(model, args, kwargs, training)
    except Exception as error:  # noqa: BLE001  the export has succeeded without this run
        return in_one_line(error)
    return tuple(dict.fromkeys(place for place, _ in watch.reads if place is not None))


def why_reads_matter(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool = False
) -> str:
    """Why what the model computes may depend on values that its code reads; empty where nothing was found.

    The model runs again with other values in the place of each read. If a read only guards, the code raises an
    exception, or runs the same operators with the same arguments. That results are equal would not show it: a branch
    that clamps has no effect on the example, which does not need it.
    """
    paths = module_paths(model)
    usual = _DependenceWatch(paths)
    try:
        results = usual.run_model(model, args, kwargs, training)
    except Exception as error:  # noqa: BLE001  a model may raise anything
        return in_one_line(error)
    if usual.has_sizes_by_values:
        return "sizes of its tensors depend on values"
    if len(usual.reads) > _MOST_READS:
        return f"it reads values {len(usual.reads)} times"
    sizes = {size for tensor in tensors_among((args, dict(kwargs))) for size in tensor.shape}
    for number, (place, value) in enumerate(usual.reads):
        changes = set[bool | None]()
        for other in _others(value):
            watch = _DependenceWatch(paths, {number: other}, usual.operators)
            try:
                found = watch.run_model(model, args, kwargs, training)
                changes.add(watch.operators != usual.operators or not all(map(torch.equal, found, results)))
            except _OtherOperatorInterrupt:
                changes.add(True)
            except Exception as error:  # noqa: BLE001  a model may raise anything
                # Where an operator fails, or code refuses a number, the model may take others that were not tried. It
                # does not if the number has to be a size, as the batch size that torch reads from a packed sequence.
                is_guard = _is_raised_by_code(error) and (isinstance(value, bool) or value in sizes)
                changes.add(False if is_guard else None)
        if True in changes or False not in changes:
            return f"another value at {place} {'makes it compute something else' if True in changes else 'fails'}"
    return ""


def _others(value: object) -> set[Any]:
    """Values to try in the place of one that was read, on both sides of what code may compare it with."""
    if isinstance(value, bool):
        return {not value}
    if isinstance(value, int):
        return {0, 1, value + 1, value + 1000, -value - 1} - {value}
    return {0.0, -value, math.inf, -math.inf, math.nan} - {value} if isinstance(value, float) else set()


def _is_raised_by_code(error: Exception) -> bool:
    """Whether a `raise` or `assert` of Python code raised an exception."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == _RAISE


class _OtherOperatorInterrupt(BaseException):
    """The model runs another operator than with the values of the inputs, perhaps in a loop that takes forever."""


class _DependenceWatch:
    """Tracks the tensors that depend on the inputs, and records operators that return their values to Python.

    Attributes:
        reads: The place and value of each read; None for more than one value, or one without an operator.
        operators: The operators that ran.
        has_sizes_by_values: Whether sizes of tensors depend on values of the inputs.
    """

    def __init__(
        self,
        paths: Mapping[int, str],
        substitutes: Mapping[int, object] | None = None,
        expected: Sequence[_Operator] = (),
    ) -> None:
        self.reads: list[tuple[SourcePlace | None, object]] = []
        self.operators: list[_Operator] = []
        self.has_sizes_by_values = False
        self._paths, self._substitutes, self._expected = paths, substitutes or {}, iter(expected)
        self._dependent: dict[int, object] = {}

    def run_model(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
    ) -> list[torch.Tensor]:
        """Run the model on copies of the inputs, and return the tensors of its result, and its numbers as tensors."""
        copied_args, copied_kwargs = copied_inputs(args, kwargs)
        self.mark((copied_args, copied_kwargs))
        isolated = isolated_run(model, training=training)
        with isolated, mha_fast_path_disabled(), _CopyWatch(self), dispatch_mode(self.run):
            result = model(*copied_args, **copied_kwargs)
        return [torch.as_tensor(leaf) for _, leaf in flattened_results(result)]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and mark its results where they depend on the inputs."""
        given, tags = leaves_of((args, kwargs)), getattr(func, "tags", ())
        self.operators.append((func, repr([leaf for leaf in given if not isinstance(leaf, torch.Tensor)])))
        if self._substitutes and next(self._expected, (None, ""))[0] is not func:
            raise _OtherOperatorInterrupt
        dependent = self.is_dependent(given) or torch.Tag.nondeterministic_seeded in tags
        result = func(*args, **kwargs)
        if dependent:
            self.mark(result)
            self.has_sizes_by_values |= torch.Tag.dynamic_output_shape in tags and _needs_values(func, args, kwargs)
            if isinstance(result, bool | int | float):
                return self.record_read(result)
            if any(isinstance(leaf, bool | int | float | complex) for leaf in leaves_of(result)):
                self.record_read()
        return result

    def mark(self, values: object) -> None:
        """Record that these tensors depend on the inputs."""
        self._dependent.update(map(_memory, tensors_among(values)))

    def is_dependent(self, values: object) -> bool:
        """Whether one of these tensors depends on the inputs."""
        return any(_memory(tensor)[0] in self._dependent for tensor in tensors_among(values))

    def record_read(self, value: object = None) -> object:
        """Record that the running source line reads a value, and return the one to use."""
        self.reads.append((find_place(running_frames(sys._getframe(1)), self._paths), value))
        return self._substitutes.get(len(self.reads) - 1, value)


def _needs_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the sizes of an operator's results depend on the values of its arguments, as in indexing with a mask."""
    try:
        func(*map_leaves(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, args), **kwargs)
    except Exception:  # noqa: BLE001  torch raises various classes
        return True
    return False


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
