"""Warnings and prints of exporters during a capture, and the specializations of a trace, with their source lines.

A trace has the operators that ran for the example inputs. Values that Python code computed from these inputs are
constants in it, which torch calls specialization.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TextIO

import torch

from modelexport.capture.source_places import SourcePlace, find_place, module_paths, running_frames
from modelexport.display import counted
from modelexport.torch_support import TORCH_LOCK
from modelexport.torch_support.private_jit import is_tracer_warning

# Packages whose warnings are about the export. Other warnings of torch and other libraries also appear when the model
# just runs.
_EXPORTERS = ("torch.export", "torch._export", "torch.onnx", "transformers.exporters")
# The exporters, and what they export with: what these print is kept, and what the model itself prints is shown.
_LIBRARIES = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript")
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
_MAX_NOTES = 20
_BY_INPUTS = "tracing fixed a value that depends on the inputs"
_PERHAPS_BY_INPUTS = "tracing fixed a value that may depend on the inputs"
_READ_WITHOUT_WARNING = "tracing fixed a value that depends on the inputs, unless this line is not run while tracing"
_NOT_KNOWN = "which values tracing fixed is not fully known: watching a run of the model failed with "
_NOT_BY_INPUTS = "tracing fixed a size, or a value that does not depend on the inputs"
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


class _Stream:
    """A standard stream, without what libraries print in one thread."""

    def __init__(self, stream: Any, kept: list[str], thread: int | None) -> None:
        self._stream, self._kept, self.thread = stream, kept, thread

    def write(self, text: str) -> int:
        frames = running_frames(sys._getframe(1))
        names = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames)
        # The first that is not of the standard library, which prints for others.
        printing = next((name for name in names if name not in sys.stdlib_module_names), "")
        is_kept = threading.get_ident() == self.thread and printing in _LIBRARIES
        (self._kept.append if is_kept else self._stream.write)(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def library_output(*, shown: bool = False) -> Iterator[list[str]]:
    """Yield a list of what libraries print within the context; log messages are printed as the user configured them.

    With `shown`, for a user who asked a library to print, the list stays empty.
    """
    kept: list[str] = []
    thread = None if shown else threading.get_ident()
    # A process without a console has neither.
    streams = [_Stream(stream or io.StringIO(), kept, thread) for stream in (sys.stdout, sys.stderr)]
    try:
        with TORCH_LOCK, contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            yield kept
    finally:
        for stream in streams:
            # Code that ran meanwhile may refer to it.
            stream.thread = None


@dataclasses.dataclass(frozen=True)
class Specialization:
    """The specializations of one capture, and the other warnings of the exporter.

    Attributes:
        warned: The warnings of the exporter.
        reads: The source lines that read values which depend on the inputs into Python; a text says why they are not
            known.
    """

    warned: tuple[TracerWarning, ...]
    reads: tuple[SourcePlace, ...] | str

    @property
    def known_reads(self) -> tuple[SourcePlace, ...]:
        """The source lines of `reads`."""
        return () if isinstance(self.reads, str) else self.reads

    @property
    def by_inputs(self) -> tuple[SourcePlace, ...]:
        """The source lines for which the tracer warned of a value that depends on the inputs, or may depend on them."""
        read = {_line(place) for place in self.known_reads}
        unknown = isinstance(self.reads, str)
        return tuple(dict.fromkeys(place for place in self._warned_places() if unknown or _line(place) in read))

    @property
    def all_places(self) -> tuple[SourcePlace, ...]:
        """All source lines where a value may have become a constant, those of `by_inputs` first."""
        return tuple(dict.fromkeys((*self.by_inputs, *self.known_reads, *self._warned_places())))

    @property
    def is_empty(self) -> bool:
        """Whether the model is known to read no values, and the tracer did not warn of constants."""
        return self.reads == () and not any(warning.fixes_value for warning in self.warned)

    def _warned_places(self) -> list[SourcePlace]:
        return [warning.place for warning in self.warned if warning.fixes_value and warning.place is not None]

    def notes(self) -> tuple[str, ...]:
        """Return the notes for the user, the most important first."""
        unknown = (f"{_NOT_KNOWN}{self.reads}",) if isinstance(self.reads, str) else ()
        return (*unknown, *_group_by_line(_by_importance(self)))


def _by_importance(found: Specialization) -> Iterator[tuple[str, str, SourcePlace | None]]:
    by_inputs = {_line(place) for place in found.by_inputs}
    fixing = [warning for warning in found.warned if warning.fixes_value]
    for warning in fixing:
        if warning.place is not None and _line(warning.place) in by_inputs:
            yield _PERHAPS_BY_INPUTS if isinstance(found.reads, str) else _BY_INPUTS, warning.text, warning.place
    for place in found.known_reads:
        if _line(place) not in by_inputs:
            yield _READ_WITHOUT_WARNING, "", place
    for warning in found.warned:
        if not warning.fixes_value:
            yield "torch warns", warning.text, warning.place
    for warning in fixing:
        if warning.place is None or _line(warning.place) not in by_inputs:
            yield _NOT_BY_INPUTS, warning.text, warning.place


def _group_by_line(found: Iterable[tuple[str, str, SourcePlace | None]]) -> tuple[str, ...]:
    """Return one note for each message and source line, however many modules run it; at most `_MAX_NOTES`."""
    places: dict[tuple[str, str, tuple[str, int] | None], list[SourcePlace | None]] = {}
    for kind, text, place in found:
        places.setdefault((kind, text, None if place is None else _line(place)), []).append(place)
    notes = [_note(kind, text, same) for (kind, text, _), same in places.items()]
    if len(notes) > _MAX_NOTES:
        return (*notes[:_MAX_NOTES], f"and {counted(len(notes) - _MAX_NOTES, 'more warning')} of the exporter")
    return tuple(notes)


def _note(kind: str, text: str, places: Sequence[SourcePlace | None]) -> str:
    number = len(places) - 1
    others = f" and in {number} other {'module' if number == 1 else 'modules'}" if number else ""
    where = f" at {places[0]}{others}" if places[0] is not None else ""
    return f"{kind}{where}" + (f": {text}" if text else "")


def _line(place: SourcePlace) -> tuple[str, int]:
    return place.file, place.line
