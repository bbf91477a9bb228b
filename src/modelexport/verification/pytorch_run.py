"""Run the model in PyTorch, and record the inputs and outputs of its calls under the names of the document."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from modelexport.display import in_one_line, with_class
from modelexport.errors import InputError
from modelexport.hierarchy import ROOT_CALL, CallId, HierarchyDocument
from modelexport.torch_support import (
    CallWatch,
    RunningCall,
    control_flow_depth,
    copied_inputs,
    flattened_results,
    full_float32_precision,
    in_this_thread,
    isolated_run,
    mha_fast_path_disabled,
    named_arguments,
    named_results,
)
from modelexport.torch_support.private import map_leaves, storage_reference, version_of

_SHOWN = 3
OTHER_SEED = 0x5EED
_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)


@contextlib.contextmanager
def reference_run(model: torch.nn.Module, *, training: bool = False) -> Iterator[None]:
    """Run the model as `isolated_run` does, in full precision."""
    with isolated_run(model, training=training), full_float32_precision():
        yield


@contextlib.contextmanager
def rounded_differently(model: torch.nn.Module, units: int) -> Iterator[None]:
    """Change each element of the floating-point results of modules by so many units in the last place, up or down.

    Other kernels round as differently. Scripted modules are left out: they do not support hooks.
    """
    generator = torch.Generator().manual_seed(units)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return tensor
        signs = torch.randint(2, tensor.shape, generator=generator).to(tensor) * 2 - 1
        return tensor * (1 + signs * units * torch.finfo(tensor.dtype).eps)

    def hook(module: torch.nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        return map_leaves(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, result)

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                hooks.callback(module.register_forward_hook(in_this_thread(hook)).remove)
        yield


def call_model(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Call the model; an exception becomes an InputError."""
    try:
        model(*args, **kwargs)
    except Exception as error:
        raise InputError(f"{type(model).__name__} does not run on these inputs: {with_class(error)}") from error


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The content of a tensor, of the same element type where numpy has it; else floats become 32-bit floats.

    Complex numbers become pairs of floats, as in ONNX graphs. The array may share the tensor's memory.
    """
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.dtype not in _NUMPY_FLOATS:
        tensor = tensor.float()
    array: np.ndarray = tensor.resolve_neg().cpu().contiguous().numpy()
    return array


class Direction(enum.StrEnum):
    """Whether a tensor is an input or an output of a call."""

    INPUT = "input"
    OUTPUT = "output"


class BoundaryKey(NamedTuple):
    """An input or output of a call in PyTorch's run; the ids in branches and loops are those of `control_flow_call`."""

    call: str
    direction: Direction
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedTensor:
    """An observed input or output. Those with the same number have the same content, which is kept once."""

    number: int
    nbytes: int
    dtype: str


@dataclasses.dataclass
class BoundaryRecording:
    """The inputs and outputs of module calls in one forward pass.

    Attributes:
        tensors: All inputs and outputs.
        values: The content of those to keep, as `array_of` returns it.
        unreadable: Why the content of one to keep could not be read.
        calls: How often each module was called outside branches and loops, by path.
        control_flow_calls: How often each module was called in branches and loops, by path.
        results: The names of what the model returned, in the order of a graph's outputs; whether each is a number.
    """

    tensors: dict[BoundaryKey, ObservedTensor] = dataclasses.field(default_factory=dict)
    values: dict[BoundaryKey, np.ndarray] = dataclasses.field(default_factory=dict)
    unreadable: dict[BoundaryKey, str] = dataclasses.field(default_factory=dict)
    calls: Counter[str] = dataclasses.field(default_factory=Counter)
    control_flow_calls: Counter[str] = dataclasses.field(default_factory=Counter)
    results: list[tuple[str, bool]] = dataclasses.field(default_factory=list)


class BoundaryRecorder:
    """Runs a model on the same inputs, any number of times. The model and the inputs are not changed.

    The names of arguments are those of the document. `passes` counts the forward passes.
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
                f"the {type(model).__name__} is not the exported model: it has no module {names}; "
                "give the model that the file was exported from"
            )

    def run(
        self, keep: Collection[BoundaryKey] = (), reseed_at: str | None = None, rounding: int = 0
    ) -> BoundaryRecording:
        """Run one forward pass in evaluation mode. Each pass starts from the same random state.

        Args:
            keep: The inputs and outputs whose content is kept.
            reseed_at: The id of a call; the random number generators get another seed when it begins.
            rounding: How many units in the last place the results of modules change: see `rounded_differently`.
        """
        self.passes += 1
        args, kwargs = copied_inputs(self._args, self._kwargs)
        with reference_run(self._model), mha_fast_path_disabled(), control_flow_depth() as depth:
            observer = _BoundaryObserver(self._arguments, keep, reseed_at, depth)
            rounded = rounded_differently(self._model, rounding) if rounding else contextlib.nullcontext()
            with rounded, observer.calls.watching(self._modules):
                call_model(self._model, args, kwargs)
        return observer.recording


def control_flow_call(path: str, index: int = 0) -> str:
    """The id of a call in a branch or loop. Exporters number these calls separately."""
    return f"{path}@control_flow {index}"


class _BoundaryObserver:
    """Records the inputs and outputs of each call under the id that the call has in this run."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        keep: Collection[BoundaryKey],
        reseed_at: str | None,
        depth: Callable[[], int],
    ) -> None:
        self.recording = BoundaryRecording()
        self.calls: CallWatch[str] = CallWatch(self._enter, self._leave)
        self._reseed_at = reseed_at
        self._arguments = arguments
        self._keep = frozenset(keep)
        # How many control-flow operators are running.
        self._depth = depth
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kept: dict[int, np.ndarray] = {}
        # Storages are kept alive, so that no other gets the same address.
        self._memory: dict[int, Any] = {}

    def _enter(self, running: RunningCall[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        path, in_control_flow = running.id.path, self._depth() > 0
        counts = self.recording.control_flow_calls if in_control_flow else self.recording.calls
        call = control_flow_call(path, counts[path]) if in_control_flow else str(CallId(path, counts[path]))
        counts[path] += 1
        if call == self._reseed_at:
            for seed in (torch.manual_seed, np.random.seed, random.seed):
                seed(OTHER_SEED)
        self._record(call, Direction.INPUT, named_arguments(self._arguments.get(path, ()), args, kwargs))
        return call

    def _leave(self, running: RunningCall[str], args: Any, kwargs: Any, result: Any) -> None:
        if running.record is None:
            return
        tensors = list(named_results(result))
        if running.record == str(ROOT_CALL):
            leaves = flattened_results(result)
            self.recording.results = [(name, not isinstance(leaf, torch.Tensor)) for name, leaf in leaves]
            tensors = [(name, torch.as_tensor(leaf)) for name, leaf in leaves]
        self._record(running.record, Direction.OUTPUT, tensors)

    def _record(self, call: str, direction: Direction, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            key = BoundaryKey(call, direction, name)
            number = self._number(tensor)
            size = int(tensor.numel() * max(tensor.element_size(), 4 if tensor.is_floating_point() else 1))
            dtype = str(tensor.dtype).removeprefix("torch.")
            self.recording.tensors[key] = ObservedTensor(number, size, dtype)
            if key in self._keep:
                try:
                    if number not in self._kept:
                        # Copied: later operators may change the tensor in place.
                        self._kept[number] = array_of(tensor).copy()
                    self.recording.values[key] = self._kept[number]
                except (RuntimeError, TypeError, NotImplementedError) as error:
                    problem = f"{name!r} of PyTorch's run cannot be compared: {in_one_line(error)}"
                    self.recording.unreadable[key] = problem

    def _number(self, tensor: torch.Tensor) -> int:
        """The same number for tensors of the same content: equal views of one storage without a write in between."""
        memory = storage_reference(tensor)
        # Without storage, or without a version counter, a tensor gets a number of its own.
        key: tuple[object, ...] = (len(self._numbers), "unique")
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
