"""What a child process of this package does first, and how its end is described. Imports the standard library only."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# What Python, C++, torch and onnxruntime say when an allocation fails.
OUT_OF_MEMORY = (
    "bad_alloc",
    "MemoryError",
    "Failed to allocate memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
)


def end_with_parent(parent: int) -> None:
    """Let Linux kill this process when its parent ends. Elsewhere the child has to notice that its stdin is closed.

    Args:
        parent: The process id of the parent, which may have ended already.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.name == "posix" and os.getppid() != parent:  # it ended before that call
        os._exit(1)


def limit_memory(amount: int | None) -> None:
    """Limit the memory that this process can allocate, and write no core files. Windows has no such limits."""
    try:
        import resource
    except ImportError:
        return
    limits = [(resource.RLIMIT_CORE, 0)]
    if amount is not None:
        limits.append((resource.RLIMIT_DATA, amount))
    for what, most in limits:
        hard = resource.getrlimit(what)[1]
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(what, (most, hard))


def signal_name(number: int) -> str:
    """The name of a signal: ``SIGSEGV``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
