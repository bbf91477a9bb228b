"""What libraries print during a capture: kept for the record of the attempt, and not shown among the user's output."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from modelexport.capture.source_places import running_frames
from modelexport.torch_support import TORCH_LOCK

# The exporters, and what they export with. What the model itself prints is shown.
_LIBRARIES = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript")


class _Stream:
    """A standard stream, without what libraries print in one thread."""

    def __init__(self, stream: Any, kept: list[str], thread: int | None) -> None:
        self.stream, self.thread = stream, thread
        self._kept = kept

    def write(self, text: str) -> int:
        """Keep the text, or write it."""
        if threading.get_ident() == self.thread and _is_library(sys._getframe(1)):
            self._kept.append(text)
        else:
            self.stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def library_output(*, shown: bool = False) -> Iterator[list[str]]:
    """Yield a list of what libraries print within the context; log messages are printed as the user configured them.

    With `shown`, for a user who asked a library to print, the list stays empty.
    """
    kept: list[str] = []
    thread = None if shown else threading.get_ident()
    with TORCH_LOCK:
        # A process without a console has none.
        streams = {name: _Stream(found, kept, thread) for name in ("stdout", "stderr") if (found := getattr(sys, name))}
        vars(sys).update(streams)
        try:
            yield kept
        finally:
            for name, stream in streams.items():
                # Code that ran meanwhile may refer to it.
                stream.thread = None
                if getattr(sys, name) is stream:
                    setattr(sys, name, stream.stream)


def _is_library(frame: FrameType) -> bool:
    """Whether the first frame outside the standard library is code of a library."""
    names = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in running_frames(frame))
    return next((name for name in names if name not in sys.stdlib_module_names), "") in _LIBRARIES
