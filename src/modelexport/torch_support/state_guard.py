"""State guards: restore the model and torch's global state after an export, whether it succeeds or fails."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from modelexport.errors import UnsupportedLibraryError
from modelexport.torch_support.private import (
    dispatch_mode,
    global_hook_tables,
    storage_id,
    storage_of,
    written_arguments,
)

# How long a fork waits for a trace in another thread.
_FORK_PATIENCE_S = 60.0


class _TorchLock:
    """A lock that a fork waits for: torch's state in the middle of a trace is of no use to the forked process."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._wait, after_in_parent=self._resume, after_in_child=self._renew)

    def _renew(self) -> None:
        # Reentrant: the thread that traces may fork too.
        self._lock = threading.RLock()

    def _wait(self) -> None:
        self._lock.acquire(timeout=_FORK_PATIENCE_S)

    def _resume(self) -> None:
        # It does not own the lock if it waited in vain.
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


# torch keeps its tracing state in module globals: hold this lock to run or trace a model.
TORCH_LOCK = _TorchLock()
_CONTAINERS = (dict, collections.OrderedDict, list, set)


@dataclasses.dataclass
class PreservedState:
    """`changed` says, after the context, whether an attribute of a module had to be restored."""

    changed: bool = False


@contextlib.contextmanager
def preserved_state(model: torch.nn.Module, *, silent: bool = True) -> Iterator[PreservedState]:
    """Restore the modules' attributes, gradient flags, the random state, and torch's global modes and hooks.

    Warnings are ignored: where the user turns them into errors, torch would fail on its own. Not with `silent=False`,
    for a caller that already records them.
    """
    state = PreservedState()
    silenced = warnings.catch_warnings(action="ignore" if silent else None)
    with _random_state(), _torch_modes(), _global_hooks(), _module_state(model, state), silenced:
        yield state


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Set every module to evaluation mode within the context.

    The flags are set directly: overridden `eval()` and `train()` may have side effects (adapters that merge their
    weights), which resetting the flags would not undo.
    """
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@contextlib.contextmanager
def buffers_restored(model: torch.nn.Module) -> Iterator[None]:
    """Restore the buffers after a forward pass that changes them (counters, running statistics)."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                if not _is_equal(buffer, before):
                    buffer.copy_(before)


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return torch.equal(one, other)
    except (RuntimeError, NotImplementedError):  # not for every layout and device
        return False


class CopyOnWrite:
    """Within its context, copies the model's tensors before a forward pass overwrites them, to restore them later.

    Few models write to their weights, and only for those anything is copied. Operators whose schema does not declare
    their writes (batch normalization in training mode) are missed: see `buffers_restored`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        attributes = (value for module in model.modules() for value in vars(module).values())
        tensors = [*model.parameters(), *model.buffers(), *(v for v in attributes if isinstance(v, torch.Tensor))]
        self._storages: dict[int | None, torch.UntypedStorage] = {
            storage_id(tensor): storage
            for tensor in tensors
            if not torch.nn.parameter.is_lazy(tensor) and (storage := storage_of(tensor)) is not None
        }
        self._copies: dict[int | None, torch.UntypedStorage] = {}
        self._mode = dispatch_mode(self._run)

    def __enter__(self) -> None:
        self._mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for tensor in written_arguments(func, args, kwargs):
            storage = storage_id(tensor)
            if storage in self._storages and storage not in self._copies:
                self._copies[storage] = self._storages[storage].clone()
        return func(*args, **kwargs)

    def restore(self) -> None:
        """Restore the tensors that were overwritten; also after a run outside the context, if it wrote to the same."""
        for storage, before in self._copies.items():
            self._storages[storage].copy_(before)


@contextlib.contextmanager
def weights_restored(model: torch.nn.Module) -> Iterator[None]:
    """Restore parameters, buffers and other tensors of the modules after an eager forward pass that changes them."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(buffers_restored(model))
        # Without this part of torch, weights that forward writes to stay changed; buffers do not.
        with contextlib.suppress(UnsupportedLibraryError):
            written = CopyOnWrite(model)
            stack.callback(written.restore)
            # Compiled modules run in eager mode: torch would compile them for the context of this run.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(written)
        yield


@contextlib.contextmanager
def isolated_run(model: torch.nn.Module, *, training: bool = False) -> Iterator[None]:
    """Run the model in eager mode, without gradients, and restore it and torch, whatever its forward changes.

    With `training` it runs in its current mode instead of evaluation mode.
    """
    mode = contextlib.nullcontext() if training else evaluation_mode(model)
    with TORCH_LOCK, preserved_state(model), weights_restored(model), mode, torch.no_grad():
        yield


@contextlib.contextmanager
def mha_fast_path_disabled() -> Iterator[None]:
    """Disable the fast path of torch's attention layers: it runs a whole layer in one kernel, unlike exporters."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def full_float32_precision() -> Iterator[None]:
    """Compute float32 products and convolutions in float32: by default GPUs round the operands (TF32)."""
    with contextlib.ExitStack() as restored:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # set by backend, in which case torch refuses to return one for all
            _set_precision(torch.backends.cuda.matmul, restored)
        else:
            restored.callback(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision("highest")
        cudnn: Any = torch.backends.cudnn
        try:
            allowed = cudnn.allow_tf32
        except RuntimeError:  # set by operation
            _set_precision(cudnn.conv, restored)
            _set_precision(cudnn.rnn, restored)
        else:
            restored.callback(setattr, cudnn, "allow_tf32", allowed)
            cudnn.allow_tf32 = False
        yield


def _set_precision(operation: Any, restored: contextlib.ExitStack) -> None:
    restored.callback(setattr, operation, "fp32_precision", operation.fp32_precision)
    operation.fp32_precision = "ieee"


class _ModuleAttributes:
    """The attributes of one module: hooks, flags, `forward`, parameters, caches.

    The contents of dicts, lists and sets among them are restored as well, but not those of other objects.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._own = dict(module.__dict__)
        self._inner = {name: value.copy() for name, value in self._own.items() if type(value) in _CONTAINERS}

    def restore(self) -> bool:
        """Restore the attributes; returns whether any had changed."""
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


def _is_uninitialized(module: torch.nn.Module) -> bool:
    # Not the module's own `parameters`, which a class may override.
    own = (
        torch.nn.Module.named_parameters(module, recurse=False),
        torch.nn.Module.named_buffers(module, recurse=False),
    )
    return any(torch.nn.parameter.is_lazy(tensor) for tensors in own for _, tensor in tensors)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two containers have the identical objects in the same order."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return bool(one == other)


@contextlib.contextmanager
def _module_state(model: torch.nn.Module, state: PreservedState) -> Iterator[None]:
    # A module with uninitialized parameters is left out: its first call initializes them, which cannot be undone.
    attributes = [_ModuleAttributes(module) for module in model.modules() if not _is_uninitialized(module)]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        changed = [own.restore() for own in attributes]
        state.changed = any(changed)
        for parameter, flag in gradients:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    state = random.getstate()
    arrays = numpy.random.get_state() if numpy is not None else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(arrays)


@contextlib.contextmanager
def _global_hooks() -> Iterator[None]:
    """Restore torch's global module hooks: an export whose forward fails may leave one registered.

    torch 2.9.1 and 2.11.0 leave their hook on registered buffers; 2.13.0 and 2.15.0 remove it.
    """
    tables = global_hook_tables()
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            if table != kept:
                table.clear()
                table.update(kept)


@contextlib.contextmanager
def _torch_modes() -> Iterator[None]:
    gradients = torch.is_grad_enabled()
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cached = torch.is_autocast_cache_enabled()
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)
        now = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        if now != (deterministic, warn_only):
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_autocast_cache_enabled(cached)
        for kind, enabled, kept in autocast:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, kept)
