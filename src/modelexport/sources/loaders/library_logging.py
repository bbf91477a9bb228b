"""Silence the logs of the libraries that load models; problems are reported as errors and notes."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

_LOGGING = ("transformers.utils.logging", "huggingface_hub.utils.logging", "diffusers.utils.logging")
_NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence logs and progress bars of the imported libraries, except download bars on a terminal.

    Also prevents requests to the hub that the user did not ask for: huggingface_hub fetches a list of tools for its
    telemetry, and transformers requests the conversion of pickled weights.
    """
    from huggingface_hub import constants

    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(_NO_CONVERSION, "1"))
        stack.enter_context(_setting(constants, "HF_HUB_DISABLE_TELEMETRY", True))
        show_downloads = _download_bars()
        stack.callback(show_downloads)
        for name in _LOGGING:
            if name.partition(".")[0] in sys.modules:
                stack.enter_context(_quiet_library(name))
        show_downloads()
        yield


@contextlib.contextmanager
def _quiet_library(name: str) -> Iterator[None]:
    library = importlib.import_module(name)
    verbosity = library.get_verbosity()
    has_bars = hasattr(library, "disable_progress_bar") and library.is_progress_bar_enabled()
    library.set_verbosity(library.CRITICAL)
    if has_bars:
        library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if has_bars:
            library.enable_progress_bar()


def _download_bars() -> Callable[[], None]:
    """A function that restores the present state of download bars: transformers switches them with its own."""
    from huggingface_hub import utils

    switch: Callable[[], None] = (
        utils.disable_progress_bars if utils.are_progress_bars_disabled() else utils.enable_progress_bars
    )
    return switch


@contextlib.contextmanager
def _setting(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
