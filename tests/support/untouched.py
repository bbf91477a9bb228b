"""Everything that an export could disturb, and what of it is not as before."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

Snapshot = dict[str, Any]


def snapshot(model: nn.Module) -> Snapshot:
    """Everything an export could disturb: the model, torch's modes and patches, random states, the process."""
    return {**model_state(model), **torch_state(), **process_state()}


def model_state(model: nn.Module) -> Snapshot:
    modules = dict(model.named_modules(remove_duplicate=False))
    state: Snapshot = {"modules": {name: id(module) for name, module in modules.items()}}
    for name, module in modules.items():
        own = vars(module)
        state[f"{name}: training"] = module.training
        state[f"{name}: attributes"] = sorted(own)
        state[f"{name}: forward"] = own.get("forward")
        for table in (key for key in own if "_hooks" in key):
            state[f"{name}: {table}"] = list(own[table].items()) if isinstance(own[table], dict) else own[table]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        state[f"{name}: tensor"] = (id(tensor), tensor.requires_grad, tensor.grad is None)
    for name, tensor in model.state_dict().items():
        state[f"{name}: content"] = (tuple(tensor.shape), tensor.dtype, tensor.numpy().tobytes())
    return state


def torch_state() -> Snapshot:
    hooks = vars(nn.modules.module)
    kinds = ("cpu", "cuda")
    return {
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype": torch.get_default_dtype(),
        "autocast": [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warnings only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": torch.get_num_threads(),
        "modes": (_get_current_dispatch_mode_stack(), _get_current_function_mode_stack()),
        "tracing": (torch.compiler.is_exporting(), torch.compiler.is_compiling(), torch.jit.is_tracing()),
        "patches": (torch.onnx.ONNXProgram.optimize, torch.onnx.export, torch.export.export, nn.Module.__call__),
        "global hooks": {
            name: list(table.items()) if isinstance(table, dict) else table
            for name, table in hooks.items()
            if name.startswith("_global_") and not callable(table)
        },
    }


def process_state() -> Snapshot:
    name, keys, *rest = np.random.get_state()
    loggers = {n: log for n, log in logging.root.manager.loggerDict.items() if isinstance(log, logging.Logger)}
    return {
        "random of Python": random.getstate(),
        "random of NumPy": (name, keys.tobytes(), *rest),
        "random of torch": torch.get_rng_state().numpy().tobytes(),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "folder": Path.cwd(),
        "path": list(sys.path),
        "environment": dict(os.environ),
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        # Not their handlers: torch takes one of its own away when it first traces.
        **{f"logger {n}": (log.level, log.disabled, log.propagate) for n, log in loggers.items()},
    }


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """What is not as before. A logger or anything else with a key of its own may be new, but nothing may change."""
    return [key for key, value in before.items() if key not in after or after[key] != value]


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes() for p in sorted(folder.rglob("*"))}
