"""Remove this package's frames from the stack traces that the TorchScript exporter writes.

With `verbose`, the exporter writes into each node the Python frames that were running when the node was traced. These
include frames of this package: those that called the exporter, and those that watch the trace.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import onnx

from modelexport.graph import proto_nodes_with_ids
from modelexport.storage import ExporterFile

_PACKAGE = re.escape(f"{Path(__file__).parents[2]}{os.sep}")
# A frame is a line: ``file.py(12): function``.
_PACKAGE_FRAME = re.compile(rf"^{_PACKAGE}[^\n]*\(\d+\): [^\n]*\n", re.MULTILINE)


def without_package_frames(file: ExporterFile) -> ExporterFile:
    """Return the file with this package's frames removed from its stack traces."""
    model = file.skeleton()
    remove_package_frames(model)
    return ExporterFile(b"".join(ExporterFile(file.data).pieces(model)), file.weights)


def remove_package_frames(model: onnx.ModelProto) -> None:
    """Remove this package's frames from the stack traces of a model, in place."""
    for _, node in proto_nodes_with_ids(model):
        if node.doc_string:
            node.doc_string = _PACKAGE_FRAME.sub("", node.doc_string)
