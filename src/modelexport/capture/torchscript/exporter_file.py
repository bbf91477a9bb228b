"""Run the TorchScript exporter, and return the file that it writes, without this package's frames in stack traces.

With `verbose`, the exporter writes into each node the Python frames that were running when the node was traced. These
include frames of this package: those that called the exporter, and those that watch the trace.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from modelexport.errors import UnsupportedLibraryError
from modelexport.graph import proto_nodes_with_ids
from modelexport.storage import ExporterFile
from modelexport.torch_support import exporter_arguments
from modelexport.torch_support.private_jit import silent_log, weights_apart

# The exporter can write a file to memory only if it fits into one protobuf message.
_LARGEST_IN_MEMORY = 3 * 2**29
_PACKAGE = re.escape(f"{Path(__file__).parents[2]}{os.sep}")
# A frame is a line: ``file.py(12): function``.
_PACKAGE_FRAME = re.compile(rf"^{_PACKAGE}[^\n]*\(\d+\): [^\n]*\n", re.MULTILINE)


def export_file(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    weights_inline: bool = False,
) -> ExporterFile | onnx.ModelProto:
    """Return the file; the loaded model where it does not fit into one protobuf message.

    `weights_inline` needs no private part of torch, but copies the weights several times.
    """
    args, named = exporter_arguments(args, kwargs)
    in_memory = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) <= _LARGEST_IN_MEMORY
    sink = _Sink()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UnsupportedLibraryError):  # no evidence is lost: the exporter then prints its log
            stack.enter_context(silent_log())
        weights = stack.enter_context(weights_apart()) if in_memory and not weights_inline else {}
        target: Any = sink
        if not in_memory:
            target = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.onnx")
        torch.onnx.export(model, args, target, kwargs=named, dynamo=False, **options)
        if not in_memory:
            loaded = onnx.load_model(target)
            _remove_package_frames(loaded)
            return loaded
    written = ExporterFile(sink.written, weights)
    if not options.get("verbose"):
        return written
    skeleton = written.skeleton()
    _remove_package_frames(skeleton)
    return ExporterFile(b"".join(ExporterFile(written.data).pieces(skeleton)), weights)


class _Sink:
    """A file in memory that does not copy the bytes that are written to it, as `io.BytesIO` does."""

    written = b""

    def write(self, data: bytes) -> int:
        self.written = self.written + data if self.written else data
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""


def _remove_package_frames(model: onnx.ModelProto) -> None:
    for _, node in proto_nodes_with_ids(model):
        if node.doc_string:
            node.doc_string = _PACKAGE_FRAME.sub("", node.doc_string)
