"""What exporters warn of while they capture a model, with the source line and the module that it is about."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TextIO

import torch

from modelexport.capture.source_places import SourcePlace, find_place, module_paths, running_frames
from modelexport.torch_support.private_jit import is_tracer_warning

# Packages whose warnings are about the model. What torch and other libraries warn of when a model merely runs is not
# about the export.
_EXPORTERS = ("torch.export", "torch._export", "torch.onnx", "transformers.exporters")
# Where exporters run an operator of the model: what it warns of is not theirs.
_RUN_OPERATORS = ("__torch_function__", "__torch_dispatch__")
# Warnings for those who maintain the exporters' code.
_FOR_MAINTAINERS = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
)
_LONGEST_TEXT = 300


@dataclasses.dataclass(frozen=True)
class TracerWarning:
    """A warning of an exporter.

    Attributes:
        text: What it says, in one line.
        place: The line of the model's code that it is about, where one ran.
        fixes_value: Whether it says that the graph has a value of the example inputs in place of what computes it.
    """

    text: str
    place: SourcePlace | None
    fixes_value: bool


class TracerWarnings:
    """The warnings of one capture, each once for each place."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = paths
        self._thread = threading.get_ident()
        self._others = warnings.showwarning
        self._found: dict[TracerWarning, None] = {}

    def __iter__(self) -> Iterator[TracerWarning]:
        return iter(self._found)

    def show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Keep a warning: takes the place of `warnings.showwarning`."""
        if threading.get_ident() != self._thread:
            self._others(message, category, filename, lineno, file, line)
            return
        frames = [*running_frames(sys._getframe(1))]
        fixes_value = is_tracer_warning(category)
        if not fixes_value and not _is_about_export(category, [frame for frame, _ in frames]):
            return
        text = " ".join(str(message).split()).removeprefix("# ")
        if fixes_value:
            # What follows is torch's general advice.
            text = text.partition(". ")[0]
        self._found[TracerWarning(text[:_LONGEST_TEXT], find_place(frames, self._paths), fixes_value)] = None


@contextlib.contextmanager
def recorded_warnings(model: torch.nn.Module) -> Iterator[TracerWarnings]:
    """Keep the warnings of exporters that capture the model within the context; show none of them."""
    with warnings.catch_warnings():
        found = TracerWarnings(module_paths(model))
        # Each time: whether one was shown before in this process must not decide.
        warnings.simplefilter("always")
        warnings.showwarning = found.show
        yield found


def _is_about_export(category: type[Warning], frames: Sequence[FrameType]) -> bool:
    if issubclass(category, _FOR_MAINTAINERS):
        return False
    issuer = next(frame for frame in frames if frame.f_globals is not vars(warnings))
    if issuer.f_code.co_name in _RUN_OPERATORS:
        return False
    name = str(issuer.f_globals.get("__name__"))
    return any(name == package or name.startswith(f"{package}.") for package in _EXPORTERS)
