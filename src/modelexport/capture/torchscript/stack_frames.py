"""Stack traces as they would be without us.

With `verbose`, the TorchScript exporter writes into each node the Python frames that were running when it was traced.
Between torch's frames lie those by which we watch the trace, and around them those by which we called the exporter.
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
_OWN_FRAME = re.compile(rf"^{_PACKAGE}[^\n]*\(\d+\): [^\n]*\n", re.MULTILINE)


def without_own_frames(file: ExporterFile) -> ExporterFile:
    """The file with our own frames taken out of its stack traces."""
    model = file.skeleton()
    remove_own_frames(model)
    return ExporterFile(b"".join(ExporterFile(file.data).pieces(model)), file.weights)


def remove_own_frames(model: onnx.ModelProto) -> None:
    """Take our own frames out of a model's stack traces, in place."""
    for _, node in proto_nodes_with_ids(model):
        if node.doc_string:
            node.doc_string = _OWN_FRAME.sub("", node.doc_string)
