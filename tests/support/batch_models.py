"""Factories for batches: models that are exported in a moment, and each way in which a job can fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

# A file that is there after the first attempt of `killed_once`, and where `waiting` says that it runs.
MARKER_VARIABLE = "MODELEXPORT_TEST_MARKER"


class Net(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.lin = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x)) + x


class Unexportable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # No exporter has an operator for it.
        return torch.linalg.eigvals(x).real if x.sum().item() > 0 else torch.from_numpy(x.numpy() * 2)


def make(size: int = 4) -> Any:
    return Net(size), (torch.ones(2, size),)


def unexportable() -> Any:
    return Unexportable(), (torch.eye(3),)


def crash(name: str = "SIGSEGV") -> Any:
    print("about to crash")  # noqa: T201  for the log
    os.kill(os.getpid(), getattr(signal, name))


def fails() -> Any:
    raise RuntimeError("not today")


def forever() -> Any:
    while True:
        time.sleep(1)


def eat_memory() -> Any:
    kept = []
    while True:
        kept.append(torch.zeros(2**24))


def killed_once() -> Any:
    marker = Path(os.environ[MARKER_VARIABLE])
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return make()


def waiting() -> Any:
    Path(os.environ[MARKER_VARIABLE]).write_text(str(os.getpid()), encoding="ascii")
    return forever()


def prints_secrets() -> Any:
    print(dict(os.environ))  # noqa: T201  what must not reach the log
    raise RuntimeError(f"cannot log in with {os.environ['AWS_SECRET_ACCESS_KEY']}")


def kill_worker_once() -> Any:
    """Kill the process that started the one that forks jobs: on Ray, the worker."""
    marker = Path(os.environ[MARKER_VARIABLE])
    if not marker.exists():
        marker.touch()
        os.kill(_parent(os.getppid()), signal.SIGKILL)
        return forever()
    return make()


def slow_once() -> Any:
    """Say which process runs the node of the cluster, and wait for its end, the first time."""
    marker = Path(os.environ[MARKER_VARIABLE])
    if not marker.exists():
        marker.write_text(str(_parent(_parent(os.getppid()))), encoding="ascii")
        return forever()
    return make()


def _parent(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[1])
