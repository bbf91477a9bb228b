"""Leave the model and torch as they were: whatever an export touches is put back, however it ends."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import warnings
from collections.abc import Iterator

import torch

# torch keeps its tracing state in module globals: whatever runs or traces a model here takes its turn.
TURN = threading.Lock()
# Flags, counters and names that a module keeps; tensors and other objects are its own affair.
_PLAIN = (bool, int, float, str)


@contextlib.contextmanager
def preserved_state(model: torch.nn.Module) -> Iterator[None]:
    """Training flags, gradient flags, hooks, `forward`, random state and torch's global modes, put back."""
    with _random_state(), _torch_modes(), _module_state(model), warnings.catch_warnings():
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
                buffer.copy_(before)


@contextlib.contextmanager
def fused_layers_off() -> Iterator[None]:
    """Without gradients torch runs whole layers of its own in one kernel; exporters never see that."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def _module_state(model: torch.nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    # The tables of hooks, and those that say which of them take keyword arguments or are always called.
    hook_names = [name for name in vars(torch.nn.Module()) if "_hooks" in name]
    flags = [module.training for module in modules]
    own_forward = [module.__dict__.get("forward") for module in modules]
    hooks = [
        {name: dict(table) for name in hook_names if isinstance(table := module.__dict__.get(name), dict)}
        for module in modules
    ]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    plain = [_plain_attributes(module) for module in modules]
    try:
        yield
    finally:
        for module, before in zip(modules, plain, strict=True):
            _restore_plain(module, before)
        for module, flag, forward, tables in zip(modules, flags, own_forward, hooks, strict=True):
            if module.training != flag:
                module.training = flag
            if module.__dict__.get("forward") is not forward:
                _restore_forward(module, forward)
            for name, table in tables.items():
                current = module.__dict__.get(name)
                if isinstance(current, dict) and current != table:
                    current.clear()
                    current.update(table)
        for parameter, flag in gradients:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


def _plain_attributes(module: torch.nn.Module) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if value is None or isinstance(value, _PLAIN)}


def _restore_plain(module: torch.nn.Module, before: dict[str, object]) -> None:
    """A forward that adds hooks at its first run notes that it did: without the hooks the note is wrong."""
    for name in _plain_attributes(module).keys() - before.keys():
        del vars(module)[name]
    for name, value in before.items():
        if vars(module).get(name, _PLAIN) is not value:
            vars(module)[name] = value


def _restore_forward(module: torch.nn.Module, forward: object) -> None:
    if forward is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = forward


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
