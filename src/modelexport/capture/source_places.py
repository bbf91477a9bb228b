"""Lines of a model's source code, with the module call that ran them."""

from __future__ import annotations

import dataclasses
import linecache
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType

import torch

_LONGEST_LINE = 100
_CALL, _FORWARD = "_call_impl", "forward"
# Code that runs a model but is not part of it: torch, this package, Python's standard library, generated code.
_PACKAGES = (Path(torch.__file__).parent, Path(__file__).parents[1])
_OUTSIDE = (*(f"{package}{os.sep}" for package in _PACKAGES), "<")
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"
_INSTALLED = tuple(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("purelib", "platlib"))


@dataclasses.dataclass(frozen=True)
class SourcePlace:
    """A line of source code, and the path of the module whose call ran it."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        folders = (*_INSTALLED, f"{Path.cwd()}{os.sep}")
        file = next((self.file.removeprefix(folder) for folder in folders if self.file.startswith(folder)), self.file)
        code = " ".join(linecache.getline(self.file, self.line).split())
        shown = f" `{code[:_LONGEST_LINE]}`" if code else ""
        where = f"module {self.module!r}" if self.module else "the root module"
        return f"{file}:{self.line}{shown} ({where})"


def module_paths(model: torch.nn.Module) -> dict[int, str]:
    """Return the path of each module of the model by the module's `id()`."""
    return {id(module): path for path, module in model.named_modules()}


def running_frames(innermost: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """Yield a frame and its callers, each with its current line."""
    while innermost is not None:
        yield innermost, innermost.f_lineno
        innermost = innermost.f_back


def raising_frames(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback, the innermost first."""
    found = []
    while traceback is not None:
        found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found[::-1]


def find_place(frames: Iterable[tuple[FrameType, int]], paths: Mapping[int, str]) -> SourcePlace | None:
    """Return the innermost line of the model's own code with the innermost module call; None if no module is running.

    Where only modules of torch are running, it is the line of the innermost one. Each of the `frames`, the innermost
    first, has its current line; `paths` is the result of `module_paths`.
    """
    line: tuple[str, int] | None = None
    innermost: tuple[str, int] | None = None
    for frame, number in frames:
        code = frame.f_code
        # `module(...)` calls this function with the module as the first argument.
        path = paths.get(id(frame.f_locals.get(code.co_varnames[0]))) if code.co_name == _CALL else None
        if path is not None:
            return SourcePlace(*(line or innermost or (code.co_filename, number)), path)
        if line is None and is_of_model(code.co_filename):
            line = code.co_filename, number
        if code.co_name == _FORWARD and innermost is None:
            innermost = code.co_filename, number
    return None


def is_of_model(file: str) -> bool:
    """Whether a source file can be part of a model: it is not in torch, this package or Python's standard library."""
    if file.startswith(_OUTSIDE):
        return False
    return not file.startswith(_STANDARD_LIBRARY) or file.startswith(_INSTALLED)
