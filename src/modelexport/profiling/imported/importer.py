"""import_profile: the report of a profile that another tool wrote."""

from __future__ import annotations

import os
from pathlib import Path

from modelexport.display import counted, shortened
from modelexport.errors import InputError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.profiling.imported.node_names import NodeNames
from modelexport.profiling.imported.onnxruntime import read_onnxruntime
from modelexport.profiling.imported.openvino import read_openvino
from modelexport.profiling.imported.tensorrt import read_tensorrt
from modelexport.profiling.owners import own_by_sources
from modelexport.profiling.profiler import build_report, selected_calls
from modelexport.profiling.report import ProfileReport, ProfileSettings
from modelexport.storage import find_hierarchy, load

# The most files that a profile of each kind has.
_KINDS = {"ort": 2, "trt": 2, "openvino": 1}
_MOST_CHARACTERS = 200
_EXAMPLES = "ort:profile.json, trt:profile.json,layers.json or openvino:exec_graph.xml"


def import_profile(
    path: str | Path, source: str, *, select: str | None = None, limits: RunLimits = DEFAULT_RUN_LIMITS
) -> ProfileReport:
    """Report the time of each module call from a profile that another tool wrote.

    Args:
        path: The file that was profiled, of modelexport or of torch's exporters.
        source: The kind of the profile and its files: ``ort:profile.json``, ``ort:profile.json,optimized.onnx``,
            ``trt:profile.json,layers.json`` or ``openvino:exec_graph.xml``.
        select: Report only the calls that this selector names (docs/selectors.md).
        limits: The limits of loading the file in onnxruntime, for ``ort:``.

    Raises:
        InputError: The source cannot be used.
        FileFormatError: The file or the profile is invalid, or the profile is one of another file.
        SelectorError: The selector cannot be read, or names no call.
    """
    given: object = source  # untyped callers pass anything
    kind, _, text = given.partition(":") if isinstance(given, str) else ("", "", "")
    if kind not in _KINDS or not text:
        raise InputError(f"{_shown(repr(source))} is not a profile that can be imported: write {_EXAMPLES}")
    paths = [Path(text)] if _is_file(text) else [Path(part) for part in text.split(",")]
    if len(paths) > _KINDS[kind]:
        raise InputError(f"{_shown(repr(source))} has more than {counted(_KINDS[kind], 'file')}: write {_EXAMPLES}")
    for part in paths:
        # Not a device or a pipe, which may have no end.
        if not _is_file(part):
            raise InputError(f"{_shown(str(part))} is not a file: --import (source) needs the path of a profile")
    file = load(path)
    hierarchy = find_hierarchy(file)
    document = hierarchy.document
    selected = None if select is None else selected_calls(document, select)
    if kind == "ort":
        measurement, kernels = read_onnxruntime(paths, file, document, limits)
    else:
        names = NodeNames(file)
        measurement = read_tensorrt(paths, names) if kind == "trt" else read_openvino(paths[0], names)
        kernels = own_by_sources(document, measurement.kernels)
    settings = ProfileSettings(runs=len(measurement.session))
    return build_report(file, document, measurement, kernels, settings, selected=selected, notes=hierarchy.missing)


def _is_file(path: str | Path) -> bool:
    # Path.is_file raises OSError for a path that is too long.
    return os.path.isfile(path)  # noqa: PTH113  as above


def _shown(text: str) -> str:
    return shortened(text, _MOST_CHARACTERS)
