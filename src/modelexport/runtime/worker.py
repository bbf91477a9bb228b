"""The process that runs ONNX graphs for `process`: started as a script, so that its death is not the caller's.

It imports nothing of this package. A message is a length, a JSON header of that length, and the bytes of the arrays
that the header lists. Nothing is unpickled on either side.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

_LENGTH_BYTES = 8
# What has a plain layout in memory: floats, integers, booleans.
_KINDS = "fiub"


def write_message(stream: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Send a header and arrays by name."""
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    listed = [{"name": name, "dtype": array.dtype.str, "shape": array.shape} for name, array in plain.items()]
    text = json.dumps({**header, "arrays": listed}).encode()
    stream.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    stream.write(text)
    for array in plain.values():
        stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """What `write_message` sent, or None where the other side has gone."""
    length = _read(stream, _LENGTH_BYTES)
    text = _read(stream, int.from_bytes(length, "little")) if length is not None else None
    if text is None:
        return None
    header = json.loads(text)
    arrays: dict[str, np.ndarray] = {}
    for entry in header["arrays"]:
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        data = _read(stream, dtype.itemsize * math.prod(shape)) if dtype.kind in _KINDS else None
        if data is None:
            return None
        arrays[entry["name"]] = np.frombuffer(data, dtype).reshape(shape)
    return header, arrays


def _read(stream: BinaryIO, size: int) -> bytearray | None:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]  # typeshed leaves it out of BinaryIO
        if not count:
            return None
        done += count
    return data


def _run(runtime: Any, header: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = runtime.SessionOptions()
    # The graph as it is in the file: what the runtime would make of it is not what is looked at.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    # Each graph runs once: weights laid out anew for speed would be a second copy of them for nothing.
    options.add_session_config_entry("session.disable_prepacking", "1")
    if header["folder"]:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", header["folder"])
    model = arrays.pop("model").tobytes()
    session = runtime.InferenceSession(model, options, ["CPUExecutionProvider"])
    del model
    feeds = {name: arrays[f"feed {name}"] for name in header["feeds"]}
    results = session.run(header["outputs"], feeds)
    return {
        name: value
        for name, value in zip(header["outputs"], results, strict=True)
        if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS
    }


def _limit_memory(amount: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, amount)):
        hard = resource.getrlimit(what)[1]
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(what, (most, hard))


def main() -> None:
    """Answer requests until the caller has gone; the argument is how many bytes of memory this may take, or empty."""
    if len(sys.argv) > 1 and sys.argv[1]:
        _limit_memory(int(sys.argv[1]))
    # Whatever prints to stdout must not end up between the messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        import onnxruntime
    except Exception as error:  # noqa: BLE001  whatever a broken installation raises is told to the caller
        write_message(answers, {"error": f"{type(error).__name__}: {error}"}, {})
        return
    write_message(answers, {"error": ""}, {})
    while (request := read_message(sys.stdin.buffer)) is not None:
        try:
            found = _run(onnxruntime, *request)
        except Exception as error:  # noqa: BLE001  whatever the runtime raises about this graph is told to the caller
            write_message(answers, {"error": f"{type(error).__name__}: {error}"}, {})
        else:
            write_message(answers, {"error": ""}, found)


if __name__ == "__main__":
    main()
