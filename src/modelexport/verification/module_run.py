"""One forward pass in PyTorch, watched: the tensors that each module call was given and returned, as the document names
them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from modelexport.errors import InputError
from modelexport.hierarchy import CallId, HierarchyDocument
from modelexport.torch_support import (
    TORCH_LOCK,
    CallWatch,
    RunningCall,
    buffers_restored,
    control_flow_depth,
    copied_inputs,
    evaluation_mode,
    mha_fast_path_disabled,
    named_arguments,
    named_results,
    preserved_state,
)
from modelexport.torch_support.private import storage_reference, version_of

_SHOWN = 3
_OTHER_SEED = 0x5EED


class Side(enum.StrEnum):
    """Where a tensor crosses the boundary of a call."""

    INPUT = "input"
    OUTPUT = "output"


class Place(NamedTuple):
    """A tensor at the boundary of a call; one in the body of a loop or branch has an identity of `body_call`."""

    call: str
    side: Side
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    """A tensor as it was seen at a place: those with the same number held the same, and are kept once."""

    number: int
    nbytes: int
    dtype: str


@dataclasses.dataclass
class ModuleRun:
    """What one pass showed.

    Attributes:
        seen: The tensors at each place.
        values: The content of those that were to be kept; narrow floats as 32-bit ones, complex numbers as pairs.
        unreadable: Why the content of a place that was to be kept could not be.
        calls: How often each module was called, by path, the bodies of loops and branches aside.
        body_calls: How often each was called in such bodies.
    """

    seen: dict[Place, Sighting] = dataclasses.field(default_factory=dict)
    values: dict[Place, np.ndarray] = dataclasses.field(default_factory=dict)
    unreadable: dict[Place, str] = dataclasses.field(default_factory=dict)
    calls: Counter[str] = dataclasses.field(default_factory=Counter)
    body_calls: Counter[str] = dataclasses.field(default_factory=Counter)


class ModuleRunner:
    """Runs one model on the same inputs as often as asked. The model and the inputs stay as they were.

    Args:
        model: The model.
        document: The hierarchy of its export, for the names of arguments.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Attributes:
        passes: How often it ran.

    Raises:
        InputError: The model is not the one that the document describes.
    """

    def __init__(
        self, model: torch.nn.Module, document: HierarchyDocument, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._args, self._kwargs = args, dict(kwargs)
        self.passes = 0
        self._arguments = {module.path: module.forward_arguments for module in document.modules}
        self._modules = dict(model.named_modules())
        missing = [path for path in self._arguments if path not in self._modules]
        if missing:
            names = ", ".join(map(repr, missing[:_SHOWN])) + (", …" if len(missing) > _SHOWN else "")
            raise InputError(
                f"the {type(model).__name__} given is not the model that was exported: it has no module {names}"
            )

    def run(self, keep: Collection[Place] = (), stirred: str | None = None) -> ModuleRun:
        """One pass in evaluation mode, each from the same random state.

        Args:
            keep: The places whose content is kept.
            stirred: The identity of a call; when it begins, the random numbers become others.

        Raises:
            InputError: The model cannot be run on these inputs.
        """
        self.passes += 1
        args, kwargs = copied_inputs(self._args, self._kwargs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(TORCH_LOCK)
            stack.enter_context(preserved_state(self._model))
            stack.enter_context(evaluation_mode(self._model))
            stack.enter_context(buffers_restored(self._model))
            stack.enter_context(mha_fast_path_disabled())
            observer = _Observer(self._arguments, keep, stirred, stack.enter_context(control_flow_depth()))
            stack.enter_context(torch.no_grad())
            stack.enter_context(observer.calls.watching(self._modules))
            try:
                self._model(*args, **kwargs)
            except Exception as error:
                reason = " ".join(str(error).split())
                raise InputError(
                    f"the model cannot be run on these inputs: {type(error).__name__}: {reason}"
                ) from error
        return observer.run


def body_call(path: str, index: int = 0) -> str:
    """The identity of a call in the body of a loop or branch, which exporters number apart from the others."""
    return f"{path}@body {index}"


class _Observer:
    """Keeps what crosses the boundary of each call; the record of a call is its identity in the run."""

    def __init__(
        self, arguments: Mapping[str, Any], keep: Collection[Place], stirred: str | None, depth: Callable[[], int]
    ) -> None:
        self.run = ModuleRun()
        self.calls: CallWatch[str] = CallWatch(self._enter, self._leave)
        self._stirred = stirred
        self._arguments = arguments
        self._keep = frozenset(keep)
        # How many control-flow operators are running.
        self._depth = depth
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kept: dict[int, np.ndarray] = {}
        # While these are held, no other memory gets the same identity.
        self._memory: dict[int, Any] = {}

    def _enter(self, running: RunningCall[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        path, in_body = running.id.path, self._depth() > 0
        counts = self.run.body_calls if in_body else self.run.calls
        call = body_call(path, counts[path]) if in_body else str(CallId(path, counts[path]))
        counts[path] += 1
        if call == self._stirred:
            for stir in (torch.manual_seed, np.random.seed, random.seed):
                stir(_OTHER_SEED)
        self._see(call, Side.INPUT, named_arguments(self._arguments.get(path, ()), args, kwargs))
        return call

    def _leave(self, running: RunningCall[str], args: Any, kwargs: Any, result: Any) -> None:
        if running.record is not None:
            self._see(running.record, Side.OUTPUT, named_results(result))

    def _see(self, call: str, side: Side, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            place = Place(call, side, name)
            number = self._number(tensor)
            size = int(tensor.numel() * max(tensor.element_size(), 4 if tensor.is_floating_point() else 1))
            self.run.seen[place] = Sighting(number, size, str(tensor.dtype).removeprefix("torch."))
            if place in self._keep:
                try:
                    if number not in self._kept:
                        self._kept[number] = content(tensor)
                    self.run.values[place] = self._kept[number]
                except (RuntimeError, TypeError, NotImplementedError) as error:
                    reason = " ".join(str(error).split())
                    self.run.unreadable[place] = f"{name!r} of PyTorch's run has no content to compare: {reason}"

    def _number(self, tensor: torch.Tensor) -> int:
        """The same for tensors of the same content: views of the same memory that nobody wrote to in between."""
        memory = storage_reference(tensor)
        # Without memory of its own, or where writes are not counted, no other tensor is known to hold the same.
        key: tuple[object, ...] = (len(self._numbers), "alone")
        if memory is not None:
            held = self._memory.setdefault(memory.cdata, memory)
            with contextlib.suppress(RuntimeError, NotImplementedError):
                key = (
                    held.cdata,
                    version_of(tensor),
                    tensor.storage_offset(),
                    tuple(tensor.shape),
                    tensor.stride(),
                    tensor.dtype,
                    tensor.is_conj(),
                    tensor.is_neg(),
                )
        return self._numbers.setdefault(key, len(self._numbers))


def content(tensor: torch.Tensor) -> np.ndarray:
    """What a tensor holds: narrow floats as 32-bit ones, complex numbers as pairs."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        # ONNX graphs hold complex numbers this way.
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    array: np.ndarray = tensor.resolve_neg().to("cpu", copy=True).contiguous().numpy()
    return array
