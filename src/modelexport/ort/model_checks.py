"""Run the ONNX checker and shape inference on a file: C++ code that a file can crash or put into an endless loop."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx

from modelexport.errors import OnnxRunError
from modelexport.limits import RunLimits
from modelexport.ort.runner import Runner

# The limits of each of the three requests: a base, and an addition for each byte of file and graph.
_SECONDS = 60.0
_BYTES_PER_SECOND = 2**20
_MEMORY_BYTES = 2**29
_MEMORY_PER_BYTE = 10
# Weights of up to this many elements may be shapes, which inference needs.
_SHAPE_ELEMENTS = 64


@dataclasses.dataclass(frozen=True)
class ModelChecks:
    """The results of the ONNX checker and of shape inference.

    Attributes:
        checker: Why the ONNX checker rejects the file; empty if it accepts it.
        shapes: Why shape inference rejects the file; empty if it accepts it.
        inferred: The graph's tensors with inferred types; None if inference failed.
    """

    checker: str
    shapes: str
    inferred: onnx.GraphProto | None


def check_file(path: Path, model: onnx.ModelProto) -> ModelChecks:
    """Run the ONNX checker and shape inference on a file that passed our own checks.

    Args:
        path: The file.
        model: The model in it; the content of large weights is not needed.
    """
    try:
        light = without_large_weights(model).SerializeToString()
    except ValueError as error:  # larger than protobuf can write, or a field that it can read and not write
        light, unwritable = b"", f"the model cannot be sent to shape inference: {error}"
    else:
        unwritable = ""
    with Runner(_limits(path.stat().st_size + len(light))) as runner:
        checker = _problem(runner, "check", "the ONNX checker", {"path": str(path)})
        if unwritable:
            return ModelChecks(checker, unwritable, None)
        graph = np.frombuffer(light, np.uint8)
        shapes = _problem(runner, "infer_strictly", "shape inference", {}, graph)
        return ModelChecks(checker, shapes, _types(runner, graph))


def infer_types(model: onnx.ModelProto) -> onnx.GraphProto | None:
    """The graph's tensors with the types that shape inference finds without `value_info`; None if it fails."""
    with type_inference(model.ByteSize(), declared=False) as infer:
        return infer(model)


@contextlib.contextmanager
def type_inference(size: int, *, declared: bool) -> Iterator[Callable[[onnx.ModelProto], onnx.GraphProto | None]]:
    """Shape inference of one or more models of about `size` bytes, in one child process.

    With `declared`, it starts from the types in `value_info`, which it needs behind operators that ONNX does not know.
    Yields a function that returns the tensors of a model's graph with inferred types, and the nodes that own subgraphs,
    which have theirs; None if inference fails.
    """
    with Runner(_limits(size)) as runner:

        def infer(model: onnx.ModelProto) -> onnx.GraphProto | None:
            try:
                light = without_large_weights(model)
                if not declared:
                    del light.graph.value_info[:]
                graph = np.frombuffer(light.SerializeToString(), np.uint8)
            except ValueError:  # larger than protobuf can write, or a text that is not UTF-8
                return None
            return _types(runner, graph)

        yield infer


def _limits(size: int) -> RunLimits:
    return RunLimits(_SECONDS + size // _BYTES_PER_SECOND, _MEMORY_BYTES + _MEMORY_PER_BYTE * size)


def _problem(runner: Runner, task: str, name: str, header: dict[str, str], *arrays: np.ndarray) -> str:
    try:
        answer, _ = runner.ask(task, name, header, arrays)
    except OnnxRunError as error:
        return str(error)
    return f"{name} rejects the file: {answer['problem']}" if answer["problem"] else ""


def _types(runner: Runner, graph: np.ndarray) -> onnx.GraphProto | None:
    try:
        _, arrays = runner.ask("infer_types", "shape inference", {}, [graph])
        graph_types = onnx.GraphProto()
        graph_types.ParseFromString(next(arrays).tobytes())
        return graph_types
    except OnnxRunError:
        # Other rules work without types; strict inference has already reported the problem.
        return None


def without_large_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with its large weights as inputs: small, and enough for shape inference."""
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    inputs = {value.name for value in model.graph.input}
    for weight in model.graph.initializer:
        if weight.data_location != onnx.TensorProto.EXTERNAL and math.prod(weight.dims) <= _SHAPE_ELEMENTS:
            graph.initializer.append(weight)
        elif weight.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    return light
