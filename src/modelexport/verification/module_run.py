"""One forward pass in PyTorch, watched: the tensors that each module call was given and returned, as the document names
them."""

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
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef

from modelexport.document import HierarchyDocument
from modelexport.errors import InputError
from modelexport.hierarchy import CallId
from modelexport.inputs import copied_inputs
from modelexport.preserve import TURN, buffers_restored, evaluation_mode, fused_layers_off, preserved_state
from modelexport.structure import named_arguments, named_results

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
        missing = [path for path in self._arguments if path not in dict(model.named_modules())]
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
        watch = _Watch(self._arguments, keep, stirred)
        self.passes += 1
        args, kwargs = copied_inputs(self._args, self._kwargs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(TURN)
            stack.enter_context(preserved_state(self._model))
            stack.enter_context(evaluation_mode(self._model))
            stack.enter_context(buffers_restored(self._model))
            stack.enter_context(fused_layers_off())
            stack.enter_context(_bodies_shown(watch))
            stack.enter_context(torch.no_grad())
            stack.enter_context(_hooked(self._model, watch))
            try:
                self._model(*args, **kwargs)
            except Exception as error:
                reason = " ".join(str(error).split())
                raise InputError(
                    f"the model cannot be run on these inputs: {type(error).__name__}: {reason}"
                ) from error
        return watch.run


def body_call(path: str, index: int = 0) -> str:
    """The identity of a call in the body of a loop or branch, which exporters number apart from the others."""
    return f"{path}@body {index}"


class _Watch:
    def __init__(self, arguments: Mapping[str, Any], keep: Collection[Place], stirred: str | None) -> None:
        self.run = ModuleRun()
        self._stirred = stirred
        self._arguments = arguments
        self._keep = frozenset(keep)
        # Paths and identities of the calls that run.
        self._stack: list[tuple[str, str]] = []
        self.bodies = 0
        self._numbers: dict[tuple[object, ...], int] = {}
        self._kept: dict[int, np.ndarray] = {}
        # While these are held, no other memory gets the same identity.
        self._memory: dict[int, StorageWeakRef] = {}

    def enter(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        counts = self.run.body_calls if self.bodies else self.run.calls
        call = body_call(path, counts[path]) if self.bodies else str(CallId(path, counts[path]))
        counts[path] += 1
        self._stack.append((path, call))
        if call == self._stirred:
            for stir in (torch.manual_seed, np.random.seed, random.seed):
                stir(_OTHER_SEED)
        self._see(call, Side.INPUT, named_arguments(self._arguments.get(path, ()), args, kwargs))

    def leave(self, path: str, result: object) -> None:
        if not any(path == running for running, _ in self._stack):
            return
        # A call that ended in an exception which its caller caught never came here: it goes with this one.
        while (ended := self._stack.pop())[0] != path:
            pass
        self._see(ended[1], Side.OUTPUT, named_results(result))

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
        try:
            memory = StorageWeakRef(tensor.untyped_storage())
            held = self._memory.setdefault(memory.cdata, memory)
            key: tuple[object, ...] = (
                held.cdata,
                tensor._version,
                tensor.storage_offset(),
                tuple(tensor.shape),
                tensor.stride(),
                tensor.dtype,
                tensor.is_conj(),
                tensor.is_neg(),
            )
        except (RuntimeError, NotImplementedError):
            # Nothing of its own in memory, or its changes are not counted.
            key = (len(self._numbers), "alone")
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


@contextlib.contextmanager
def _hooked(model: torch.nn.Module, watch: _Watch) -> Iterator[None]:
    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                before, after = _hooks(path, watch)
                # Before the user's own hooks and after them: a call is all that `module(...)` does.
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _bodies_shown(watch: _Watch) -> Iterator[None]:
    """torch compiles loops and branches to run them, and that shows no calls: let them run as they are written."""
    original: Any = HigherOrderOperator.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.bodies += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.bodies -= 1

    with torch.compiler.set_stance("force_eager"):
        HigherOrderOperator.__call__ = noted  # type: ignore[method-assign]
        try:
            yield
        finally:
            HigherOrderOperator.__call__ = original  # type: ignore[method-assign]


def _hooks(path: str, watch: _Watch) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        # While torch compiles a control-flow body it traces the hooks too: they must have no effect there.
        if not torch.compiler.is_dynamo_compiling():
            watch.enter(path, args, kwargs)

    def after(module: torch.nn.Module, args: tuple[object, ...], result: object) -> None:
        if not torch.compiler.is_dynamo_compiling():
            watch.leave(path, result)

    return before, after
