"""The child process of `runner`: runs ONNX graphs, the ONNX checker and shape inference, one request at a time.

Started as a script; of this package it imports `child_process` only. A message is a length, a JSON header of that
length, and the bytes of the arrays that the header lists. Neither side unpickles anything. It ends with its parent,
also while busy.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from modelexport.child_process import end_with_parent, limit_memory

# A header lists arrays by type and shape. A longer header is invalid.
_HEADER_BYTES = 2**28
_LENGTH_BYTES = 8
# Types with a plain layout in memory: floats, integers, booleans.
_KINDS = "fiub"
_MESSAGE_CHARACTERS = 500

Request = tuple[dict[str, Any], list[np.ndarray]]
Answer = tuple[dict[str, Any], Sequence[np.ndarray]]


# --- messages --------------------------------------------------------------------------------------------------


def write_message(stream: BinaryIO, header: Mapping[str, Any], arrays: Iterable[np.ndarray] = ()) -> None:
    """Send a header and arrays."""
    plain = [np.asarray(array, order="C") for array in arrays]
    text = json.dumps({**header, "arrays": [[array.dtype.str, array.shape] for array in plain]}).encode()
    stream.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    stream.write(text)
    for array in plain:
        stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def read_header(stream: BinaryIO) -> dict[str, Any]:
    """Read the header of a message; its arrays follow, each to be read with `read_array`.

    Raises:
        EOFError: The other side has closed the stream.
        ValueError: The stream does not contain a message.
    """
    length = int.from_bytes(_read(stream, _LENGTH_BYTES), "little")
    if length > _HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    try:
        header = json.loads(_read(stream, length))
        header["arrays"] = [(_dtype(name), tuple(map(int, shape))) for name, shape in header["arrays"]]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return dict(header)


def array_bytes(entry: tuple[np.dtype, tuple[int, ...]]) -> int:
    """The size of an array that a header lists."""
    dtype, shape = entry
    return dtype.itemsize * math.prod(shape)


def read_array(stream: BinaryIO, entry: tuple[np.dtype, tuple[int, ...]]) -> np.ndarray:
    """Read the next array of a message."""
    return np.frombuffer(_read(stream, array_bytes(entry)), entry[0]).reshape(entry[1])


def _dtype(name: object) -> np.dtype:
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of type {dtype}")
    return dtype


def _read(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]  # typeshed leaves it out of BinaryIO
        if not count:
            raise EOFError
        done += count
    return data


# --- tasks -----------------------------------------------------------------------------------------------------


def _run(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Run a graph: the first arrays are the pieces of the serialized model, the others are its inputs."""
    import onnxruntime

    options = _session_options(header)
    # Run the graph of the file, not an optimized one.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Each graph runs once, and both of these would allocate the memory of the weights a second time.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    if header["folder"]:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", header["folder"])
    model = b"".join(piece.data for piece in arrays[: header["pieces"]])
    del arrays[: header["pieces"]]
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    del model
    return _run_session(session, header, arrays)


def _run_file(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Load a file, and run it where `feeds` are given."""
    import onnxruntime

    options = _session_options(header)
    if not header["optimized"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    loaded = False
    try:
        status = Path(header["path"]).stat()
        file = (header["path"], status.st_ino, status.st_mtime_ns, status.st_size, header["optimized"])
        session = _loaded.get(file)
        if session is None:
            # Its memory is free before the next file is loaded.
            _loaded.clear()
            session = onnxruntime.InferenceSession(header["path"], options, ["CPUExecutionProvider"])
            _loaded[file] = session
        loaded = True
        answer, results = _run_session(session, header, arrays) if header["feeds"] is not None else ({}, ())
    except Exception as error:  # noqa: BLE001  onnxruntime raises many types
        return {"loaded": loaded, "kind": type(error).__name__, "problem": str(error), "outputs": []}, ()
    return {"loaded": True, "problem": "", "outputs": [], **answer}, results


def _session_options(header: Mapping[str, Any]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = header["threads"]
    return options


def _run_session(session: Any, header: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Answer:
    """Run a session; inputs that it does not have are left out, and so are outputs that are not numeric."""
    names = {value.name for value in session.get_inputs()}
    feeds = {name: array for name, array in zip(header["feeds"], arrays, strict=True) if name in names}
    results = session.run(header["outputs"], feeds)
    tensors = {
        position: value
        for position, value in enumerate(results)
        if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS
    }
    return {"outputs": list(tensors)}, list(tensors.values())


# The session of the file that was run last: a file is run on several inputs.
_loaded: dict[tuple[object, ...], Any] = {}

# The session that is profiled, and its inputs. It is opened, run and closed by separate requests: each run has the time
# limit of one request, and the parent knows how many runs are done.
_profiled: dict[str, Any] = {}


def _profile_open(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Load a file in a session that records a profile and saves the graph that it executes."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    known = {name.lower().removesuffix("executionprovider"): name for name in available}
    providers = [known.get(name.lower().removesuffix("executionprovider")) for name in header["providers"]]
    if None in providers:
        return {"no_provider": header["providers"][providers.index(None)], "available": available}, ()
    options = _session_options(header)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, header["level"])
    options.enable_profiling = True
    options.profile_file_prefix = header["profile"]
    options.optimized_model_filepath = header["executed"]
    # The graph is read without its weights.
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    session = onnxruntime.InferenceSession(header["path"], options, providers or ["CPUExecutionProvider"])
    _profiled["session"], _profiled["feeds"] = session, dict(zip(header["feeds"], arrays, strict=True))
    missing = [name for name in providers if name not in session.get_providers()]
    if missing:
        return {"no_provider": missing[0], "available": session.get_providers()}, ()
    return {"version": onnxruntime.__version__}, ()


def _profile_run(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Run the profiled session once; its results are dropped."""
    _profiled["session"].run(None, _profiled["feeds"])
    return {}, ()


def _profile_close(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """End the profile. Returns its path."""
    return {"profile": _profiled.pop("session").end_profiling()}, ()


def _check(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Run the ONNX checker on a file, by its path: the checker looks for external data beside it."""
    import onnx.checker

    return _problem(onnx.checker.check_model, header["path"], full_check=False), ()


def _infer_strictly(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Run strict shape inference on a model."""
    import onnx.shape_inference

    infer = onnx.shape_inference.infer_shapes
    return _problem(infer, arrays[0].tobytes(), check_type=True, strict_mode=True), ()


def _infer_types(header: Mapping[str, Any], arrays: list[np.ndarray]) -> Answer:
    """Infer types. Returns a serialized graph without weights, and of its nodes those that own subgraphs."""
    import onnx.shape_inference

    graph = onnx.shape_inference.infer_shapes(arrays[0].tobytes(), data_prop=True).graph
    owning = onnx.GraphProto(node=[n for n in graph.node if any(a.HasField("g") or a.graphs for a in n.attribute)])
    for field in ("node", "initializer", "sparse_initializer", "metadata_props"):
        graph.ClearField(field)
    graph.MergeFrom(owning)
    return {}, [np.frombuffer(graph.SerializeToString(), np.uint8)]


def _problem(work: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    try:
        work(*args, **options)
    except Exception as error:  # noqa: BLE001  the C++ parts of onnx raise many types
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_CHARACTERS]}
    return {"problem": ""}


_TASKS: Mapping[str, tuple[str, Callable[[Mapping[str, Any], list[np.ndarray]], Answer]]] = {
    "run": ("onnxruntime", _run),
    "run_file": ("onnxruntime", _run_file),
    "profile_open": ("onnxruntime", _profile_open),
    "profile_run": ("onnxruntime", _profile_run),
    "profile_close": ("onnxruntime", _profile_close),
    "check": ("onnx", _check),
    "infer_strictly": ("onnx", _infer_strictly),
    "infer_types": ("onnx", _infer_types),
}


# --- the process -----------------------------------------------------------------------------------------------


def _receive(stream: BinaryIO, requests: queue.SimpleQueue[Request]) -> None:
    """Read requests in a separate thread, so that the process ends with its parent also while a graph runs."""
    try:
        while True:
            header = read_header(stream)
            requests.put((header, [read_array(stream, entry) for entry in header["arrays"]]))
    finally:
        os._exit(0)


def _answer(header: dict[str, Any], arrays: list[np.ndarray]) -> Answer:
    module, work = _TASKS[header["task"]]
    try:
        __import__(module)
    except Exception as error:  # noqa: BLE001  a broken installation raises anything
        return {"not_importable": f"{type(error).__name__}: {error}"}, ()
    try:
        return work(header, arrays)
    except Exception as error:  # noqa: BLE001  onnxruntime and onnx raise many types
        return {"error": f"{type(error).__name__}: {error}"}, ()


def main() -> None:
    """Answer requests.

    Arguments: the process id of the parent, the memory limit in bytes or an empty string, and modules to import.
    """
    parent, memory, *preloaded = sys.argv[1:]
    end_with_parent(int(parent))
    if memory:
        limit_memory(int(memory))
    # Output that libraries print to stdout must not mix with the messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, requests), daemon=True).start()
    for name in preloaded:
        with contextlib.suppress(Exception):  # the request that needs it says what is wrong
            __import__(name)
    write_message(answers, {})
    while True:
        write_message(answers, *_answer(*requests.get()))


if __name__ == "__main__":
    main()
