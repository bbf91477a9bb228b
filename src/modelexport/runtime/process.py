"""ONNX graphs run in onnxruntime, in a process of its own: a graph that crashes it ends that process alone."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np
import onnx
import onnx_ir as ir

from modelexport.errors import InputError, OnnxRunError
from modelexport.limits import NO_RUN_LIMITS, RunLimits
from modelexport.runtime import worker

_MESSAGE_CHARACTERS = 400
# Element types that numpy has not: they go in and come out as 32-bit floats, which hold all their values.
_WIDENED = frozenset(
    {
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.FLOAT8E4M3FN,
        onnx.TensorProto.FLOAT8E4M3FNUZ,
        onnx.TensorProto.FLOAT8E5M2,
        onnx.TensorProto.FLOAT8E5M2FNUZ,
    }
)


class OnnxProcess:
    """Runs graphs one after the other in one process, which is started when needed and again after it died.

    Args:
        limits: What the process may take; a graph that takes more is refused like one that kills it.

    Raises:
        InputError: onnxruntime is not installed.
    """

    def __init__(self, limits: RunLimits = NO_RUN_LIMITS) -> None:
        self._limits = limits
        self._late = False
        if importlib.util.find_spec("onnxruntime") is None:
            raise InputError("running an ONNX model needs onnxruntime: pip install 'modelexport[runtime]'")
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None

    def __enter__(self) -> OnnxProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(
        self, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, folder: Path | None = None
    ) -> dict[str, np.ndarray]:
        """The outputs of a graph by name; those that are no plain tensors are left out.

        Args:
            model: The graph. Its inputs and outputs are changed where numpy has not their type.
            feeds: Its inputs by name, of the types it declares; what numpy has not as 32-bit floats.
            folder: Where its weights are that are in other files.

        Raises:
            OnnxRunError: onnxruntime refused the graph, failed in it, or died of it.
            InputError: onnxruntime cannot be started at all.
        """
        inputs = _widen_inputs(model.graph)
        outputs = _widen_outputs(model.graph)
        given = {inputs.get(name, name): array for name, array in feeds.items()}
        names = [outputs.get(value.name, value.name) for value in model.graph.output]
        try:
            data = model.SerializeToString()
        except ValueError as error:
            raise OnnxRunError(f"the graph is too large to be handed over with its weights in it: {error}") from error
        header = {
            "folder": str(folder.resolve()) if folder is not None else "",
            "feeds": list(given),
            "outputs": [value.name for value in model.graph.output],
        }
        arrays = {"model": np.frombuffer(data, np.uint8), **{f"feed {name}": a for name, a in given.items()}}
        found = self._ask(header, arrays)
        own = dict(zip(header["outputs"], names, strict=True))
        return {own[name]: array for name, array in found.items()}

    def _ask(self, header: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        process = self._started()
        clock = threading.Timer(self._limits.seconds or 0.0, self._end, [process])
        if self._limits.seconds is not None:
            clock.start()
        try:
            worker.write_message(cast(BinaryIO, process.stdin), header, arrays)
            answer = worker.read_message(cast(BinaryIO, process.stdout))
        except OSError:
            answer = None
        except BaseException:
            # Half a message is on its way: the process cannot be used any more.
            self._stop()
            raise
        finally:
            clock.cancel()
        if answer is None:
            raise OnnxRunError(self._last_words())
        if self._late:  # the answer came at the same moment
            self._late = False
            self._stop()
        said, found = answer
        if said["error"]:
            raise OnnxRunError(_shortened(said["error"]))
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process is stopped
        # As a script, by its path: whoever calls need not be importable again there. What can be imported here can be
        # imported there too. Ctrl-C is for the caller, who then ends it.
        process = subprocess.Popen(
            [sys.executable, "-P", worker.__file__, str(self._limits.memory_bytes or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        self._process = process
        hello = worker.read_message(cast(BinaryIO, process.stdout))
        if hello is None:
            raise InputError(f"onnxruntime cannot be started: {self._last_words()}")
        if hello[0]["error"]:
            self._stop()
            raise InputError(
                f"onnxruntime is installed but cannot be imported ({hello[0]['error']}): "
                "pip install --force-reinstall 'modelexport[runtime]'"
            )
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._late = True
        process.kill()

    def _last_words(self) -> str:
        """How the process ended, after it did."""
        assert self._process is not None
        code = self._process.wait()
        if self._late:
            self._late = False
            self._stop()
            return f"it takes longer than {self._limits.seconds:g} s"
        lines: list[str] = []
        if self._complaints is not None:
            self._complaints.seek(0)
            lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        self._stop()
        how = f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        return _shortened(f"onnxruntime died of it ({how}{'; ' + lines[-1] if lines else ''})")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    cast(BinaryIO, stream).close()
            process.wait()
        complaints, self._complaints = self._complaints, None
        if complaints is not None:
            complaints.close()


def with_outputs(model: ir.Model, values: Iterable[ir.Value]) -> onnx.ModelProto:
    """A copy of a model that gives these tensors of its main graph, and no others."""
    proto = ir.to_proto(model)
    del proto.graph.output[:]
    # The runtime infers types itself; what a file says of inner tensors need not fit other inputs than the exporter's.
    del proto.graph.value_info[:]
    for value in values:
        output = onnx.ValueInfoProto(name=value.name)
        if value.dtype is not None:
            output.type.tensor_type.elem_type = value.dtype.value
        proto.graph.output.append(output)
    return proto


def numpy_type(dtype: ir.DataType) -> np.dtype | None:
    """The type in which an input of that element type is given, or None where there is none."""
    if dtype.value in _WIDENED:
        return np.dtype(np.float32)
    try:
        found = dtype.numpy()
    except TypeError:
        return None
    return found if found.kind in "fiub" else None


def _widen_inputs(graph: onnx.GraphProto) -> dict[str, str]:
    """Let inputs of types that numpy has not come in as floats. Gives their new names by the old."""
    names: dict[str, str] = {}
    casts = []
    for value in graph.input:
        kind = value.type.tensor_type.elem_type
        if kind in _WIDENED:
            # The name stays that of the cast's result: bodies may read it too.
            names[value.name] = f"{value.name} as float"
            casts.append(onnx.helper.make_node("Cast", [names[value.name]], [value.name], to=kind))
            value.name = names[value.name]
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    if casts:
        nodes = [*casts, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return names


def _widen_outputs(graph: onnx.GraphProto) -> dict[str, str]:
    """Let outputs of types that numpy has not leave as floats. Gives their old names by the new."""
    names: dict[str, str] = {}
    for value in graph.output:
        if value.type.tensor_type.elem_type in _WIDENED:
            widened = f"{value.name} as float"
            names[widened] = value.name
            graph.node.append(onnx.helper.make_node("Cast", [value.name], [widened], to=onnx.TensorProto.FLOAT))
            value.name = widened
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return names


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]}…"
