"""Leave the model and torch as they were: whatever an export touches is put back, however it ends."""

from __future__ import annotations

import collections
import contextlib
import random
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# torch keeps its tracing state in module globals: whatever runs or traces a model here takes its turn.
TORCH_LOCK = threading.Lock()
_CONTAINERS = (dict, collections.OrderedDict, list, set)


@contextlib.contextmanager
def preserved_state(model: torch.nn.Module) -> Iterator[None]:
    """The modules' attributes, gradient flags, random state and torch's global modes and hooks, put back."""
    with _random_state(), _torch_modes(), _global_hooks(), _module_state(model), warnings.catch_warnings():
        # Where warnings are errors, torch would end at its own. Captures record those that are about the model.
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Every module in evaluation mode for the time of the context.

    The flags are set directly: `eval()` and `train()` may be overridden with side effects (adapters that merge
    their weights), and those would not be undone by setting the flags back.
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
    """A forward that counts its calls or keeps statistics has run: its buffers are put back."""
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


class CopyOnWrite(TorchDispatchMode):
    """Keeps a copy of what a forward overwrites in its model's tensors.

    Few models write to their weights, and only those pay for it: nothing is copied before an operator writes to it.
    Operators that do not tell what they write to (batch normalization in training mode) are not noticed: see
    `buffers_restored`.
    """

    # Operators with functions as arguments cannot write to what is there already, and run as they are.
    supports_higher_order_operators = True

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        attributes = (value for module in model.modules() for value in vars(module).values())
        tensors = [*model.parameters(), *model.buffers(), *(v for v in attributes if isinstance(v, torch.Tensor))]
        self._kept = {memory._cdata: memory for tensor in tensors if (memory := memory_of(tensor)) is not None}
        self._copies: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in overwritten(func, args, kwargs or {}):
            memory = memory_of(tensor)
            if memory is not None and memory._cdata in self._kept and memory._cdata not in self._copies:
                self._copies[memory._cdata] = memory.clone()
        return func(*args, **(kwargs or {}))

    def restore(self) -> None:
        """Put back what was overwritten."""
        for identity, before in self._copies.items():
            self._kept[identity].copy_(before)
        self._copies.clear()


def overwritten(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments that it writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **kwargs}
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    leaves = pytree.tree_leaves([given.get(name) for name in written])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def memory_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Where a tensor lies; None where it has no memory: a wrapper around others, or one of an unusual layout."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


@contextlib.contextmanager
def fused_layers_off() -> Iterator[None]:
    """Without gradients torch runs whole layers of its own in one kernel; exporters never see that."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class AttributeSnapshot:
    """The attributes of every module of a model: hooks, flags, `forward`, parameters, caches, whatever it keeps.

    Tables, lists and sets among them are put back as well, but not what other objects hold. What a module with
    uninitialized parameters becomes at its first call cannot be undone: such a module is left out.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = [_ModuleAttributes(module) for module in model.modules() if not _is_uninitialized(module)]

    def restore(self) -> bool:
        """Put everything back.

        Returns:
            Whether something had changed.
        """
        changed = [module.restore() for module in self._modules]
        return any(changed)


class _ModuleAttributes:
    """What one module holds, and what the containers hold that it has as attributes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._own = dict(module.__dict__)
        self._inner = {name: value.copy() for name, value in self._own.items() if type(value) in _CONTAINERS}

    def restore(self) -> bool:
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
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None and torch.nn.parameter.is_lazy(tensor) for tensor in tensors)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two containers hold the very same objects in the same order."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return bool(one == other)


@contextlib.contextmanager
def _module_state(model: torch.nn.Module) -> Iterator[None]:
    attributes = AttributeSnapshot(model)
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        attributes.restore()
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
    """The hooks that torch keeps for all modules: its export leaves one of its own behind when a forward fails.

    torch 2.9.1 and 2.11.0 keep their hook on registered buffers then; 2.13.0 and 2.15.0 remove it.
    """
    tables = [table for name, table in vars(torch.nn.modules.module).items() if _is_hook_table(name, table)]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            if table != kept:
                table.clear()
                table.update(kept)


def _is_hook_table(name: str, table: object) -> bool:
    return name.startswith("_global_") and "_hooks" in name and isinstance(table, dict)


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
