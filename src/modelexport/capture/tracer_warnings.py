"""Warnings of exporters during a capture, with the source line and the module of the model that they refer to."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TextIO

import torch

from modelexport.capture.source_places import SourcePlace, find_place, module_paths, running_frames
from modelexport.torch_support.private_jit import is_tracer_warning

# Packages whose warnings are about the export. Other warnings of torch and other libraries also appear when the model
# just runs.
_EXPORTERS = ("torch.export", "torch._export", "torch.onnx", "transformers.exporters")
# Functions in which an exporter runs an operator of the model: its warnings are not about the export.
_RUN_OPERATORS = ("__torch_function__", "__torch_dispatch__")
# Warnings for the developers of the exporters.
_FOR_DEVELOPERS = (
    DeprecationWarning,
    PendingDeprecationWarning,
    FutureWarning,
    ImportWarning,
    ResourceWarning,
)
_LONGEST_TEXT = 300
# torch warns also where two axes of one name are one size, as the name says.
_ONE_NAME = re.compile(r"The axis name: (?P<name>.+) will not be used, .* another axis: (?P=name)\.")


@dataclasses.dataclass(frozen=True)
class TracerWarning:
    """A warning of an exporter.

    Attributes:
        text: The message in one line.
        place: The running line of the model's code, if any.
        fixes_value: Whether a value computed from the example inputs becomes a constant of the graph.
    """

    text: str
    place: SourcePlace | None
    fixes_value: bool


class TracerWarnings:
    """The warnings of one capture, each once for each source line."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        self._paths = paths
        self._thread = threading.get_ident()
        self._show_elsewhere = warnings.showwarning
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
        """Record a warning; replaces `warnings.showwarning`."""
        if threading.get_ident() != self._thread:
            self._show_elsewhere(message, category, filename, lineno, file, line)
            return
        frames = [*running_frames(sys._getframe(1))]
        fixes_value = is_tracer_warning(category)
        if not fixes_value and not _is_about_export(category, [frame for frame, _ in frames]):
            return
        text = " ".join(str(message).split()).removeprefix("# ")
        if _ONE_NAME.fullmatch(text):
            return
        if fixes_value:
            # The rest of the message is torch's general advice.
            text = text.partition(". ")[0]
        self._found[TracerWarning(text[:_LONGEST_TEXT], find_place(frames, self._paths), fixes_value)] = None


@contextlib.contextmanager
def recorded_warnings(model: torch.nn.Module) -> Iterator[TracerWarnings]:
    """Record the warnings of exporters that capture the model within the context, and print none of them."""
    with warnings.catch_warnings():
        found = TracerWarnings(module_paths(model))
        # Always: Python shows a warning only once in a process by default.
        warnings.simplefilter("always")
        warnings.showwarning = found.show
        yield found


def _is_about_export(category: type[Warning], frames: Sequence[FrameType]) -> bool:
    if issubclass(category, _FOR_DEVELOPERS):
        return False
    issuer = next(frame for frame in frames if frame.f_globals is not vars(warnings))
    if issuer.f_code.co_name in _RUN_OPERATORS:
        return False
    name = str(issuer.f_globals.get("__name__"))
    return any(name == package or name.startswith(f"{package}.") for package in _EXPORTERS)
