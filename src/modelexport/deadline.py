"""The deadline for reading an untrusted file: it interrupts the thread that reads, wherever that spends its time.

Limits of size keep the time of every known walk low. A deadline is for what is not known, so no walk has to check it: a
second thread raises an exception in the one that reads. Decision 025 explains that.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import inspect
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from modelexport.errors import FileFormatError, InputError
from modelexport.limits import DEFAULT_LIMITS, ReadLimits

_VARIABLE = "MODELEXPORT_READ_SECONDS"
_DEFAULT_SECONDS = 600.0
# If the exception was raised where Python ignores it, in a finalizer, it is raised again after so many seconds.
_SECONDS_TO_END = 10.0
_THREAD_NAME = "modelexport-deadline"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Expired(BaseException):
    """Not an Exception: like KeyboardInterrupt it must not be handled as the failure of one step."""


class _Watch:
    """Raises `_Expired` in the thread that created it, once this thread has spent so many seconds, pauses aside."""

    def __init__(self, seconds: float) -> None:
        self._reader = threading.get_ident()
        self._left = seconds
        self._ends: float | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def start(self) -> None:
        self._ends = time.monotonic() + self._left
        threading.Thread(target=self._watch, name=_THREAD_NAME, daemon=True).start()

    def stop(self) -> None:
        # An exception that is under way is raised here, by the calls after the lock is taken. It cannot be withdrawn:
        # Python 3.11 then never resets the flag that one is under way, and loops as soon as the code is profiled.
        with self._lock:
            self._is_over.set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time within the context."""
        with self._lock:
            if self._ends is not None:
                self._left, self._ends = self._ends - time.monotonic(), None
        try:
            yield
        finally:
            with self._lock:
                self._ends = time.monotonic() + self._left

    def _watch(self) -> None:
        wait = self._left
        while not self._is_over.wait(min(max(wait, 0.0), threading.TIMEOUT_MAX)):
            with self._lock:
                # In a pause, at least what was left then is left after it.
                wait = self._left if self._ends is None else self._ends - time.monotonic()
                if self._ends is not None and wait <= 0 and not self._is_over.is_set():
                    reader, error = ctypes.c_ulong(self._reader), ctypes.py_object(_Expired)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(reader, error)
                    wait = _SECONDS_TO_END


_watch: contextvars.ContextVar[_Watch | None] = contextvars.ContextVar("_watch", default=None)


def read_within_limit(read: Callable[[], Result], *files: object, limits: ReadLimits = DEFAULT_LIMITS) -> Result:
    """Call a function that reads these files. If it was called by such a function, that one has the deadline.

    Not a context manager: the exception could be raised as soon as its method for the end of the context is entered,
    which then could not handle it.

    Raises:
        FileFormatError: It took longer than the limit.
    """
    seconds = _seconds(limits)
    if seconds == math.inf or _watch.get() is not None:
        return read()
    watch = _Watch(seconds)
    token = _watch.set(watch)
    try:
        try:
            watch.start()
            return read()
        finally:
            watch.stop()
    except _Expired:
        # It may have been raised in `stop` itself, and is not raised again soon.
        watch.stop()
        names = " and ".join(str(file) for file in files if isinstance(file, str | os.PathLike)) or "the model"
        raise FileFormatError(
            f"{names}: reading took longer than the limit of {seconds:g} s; for a file that you trust, raise it by the "
            f"environment variable {_VARIABLE} or by ReadLimits.seconds; inf is no limit"
        ) from None
    finally:
        _watch.reset(token)


@contextlib.contextmanager
def deadline_paused() -> Iterator[None]:
    """Do within the context what has limits of its own, or must not be interrupted; files read in it have their own."""
    watch = _watch.get()
    if watch is None:
        yield
        return
    token = _watch.set(None)
    try:
        with watch.paused():
            yield
    finally:
        _watch.reset(token)


def reads_files(count: int = 1) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function that reads the files in its first `count` arguments; it may have an argument `limits`."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def read(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
            limits = given.get("limits")
            files = [given.get(name) for name in names[:count]]
            limits = limits if isinstance(limits, ReadLimits) else DEFAULT_LIMITS
            return read_within_limit(lambda: function(*args, **kwargs), *files, limits=limits)

        return read

    return decorate


def _seconds(limits: ReadLimits) -> float:
    """The limit: of the argument, of the environment variable, or the default."""
    if limits.seconds is not None:
        return limits.seconds
    text = os.environ.get(_VARIABLE) or str(_DEFAULT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InputError(f"{_VARIABLE} is {text!r}: give a positive number of seconds, or inf for no limit")
    return seconds
