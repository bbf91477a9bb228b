"""Run a full ONNX model on PyTorch's inputs: any of its tensors, or all of them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch

from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.graph import named_values
from modelexport.limits import RunLimits
from modelexport.ort import Array, PreparedModel, Runner, SubgraphReceiver, prepared, run_subgraphs
from modelexport.storage import build_ir
from modelexport.verification.graph_inputs import GraphInputs
from modelexport.verification.tensor_arrays import array_of


class FullModelRun:
    """Returns tensors of the main graph, computed from PyTorch's inputs.

    Args:
        model: The model.
        ready: The same model, prepared for runs.
        inputs: The tensors for the graph's inputs.

    Attributes:
        error: Why the model could not run; empty if it could.

    Raises:
        InputError: The shape of an input does not match the file.
    """

    def __init__(self, model: ir.Model, ready: PreparedModel, inputs: GraphInputs) -> None:
        self._ready = ready
        self._values = named_values(model.graph)
        self.error = ""
        self._feeds: dict[str, np.ndarray] = {}
        for value in model.graph.inputs:
            name = value.name or ""
            if name in inputs.tensors:
                array = array_of(inputs.tensors[name])
                self._feeds[name] = array
                _check_shape(value, array)
            elif not value.is_initializer():
                self.error = inputs.explain()

    def has(self, tensor: str | None) -> bool:
        """Whether the main graph has a tensor of that name."""
        return tensor in self._values

    def fetch(self, runner: Runner, tensors: Iterable[str]) -> dict[str, np.ndarray]:
        """The content of these tensors; without those that nodes produce, if onnxruntime cannot run the model."""
        found: dict[str, np.ndarray] = {}
        produced: list[str] = []
        for name in dict.fromkeys(tensors):
            value = self._values[name]
            if name in self._feeds:
                found[name] = self._feeds[name]
            elif value.const_value is not None and value.producer() is None:
                stored = np.asarray(value.const_value.numpy())
                found[name] = stored if stored.dtype.kind in "fiub" else stored.astype(np.float32)
            else:
                produced.append(name)
        if produced and not self.error:
            try:
                found |= self._ready.tensors(runner, self._feeds, produced)
            except OnnxRunError as error:
                self.error = str(error)
        return found


def _check_shape(value: ir.Value, array: np.ndarray) -> None:
    if value.shape is None:
        return
    matches = len(value.shape) == array.ndim and all(
        not isinstance(wanted, int) or wanted == size for wanted, size in zip(value.shape, array.shape, strict=True)
    )
    if not matches:
        wanted = "x".join("?" if not isinstance(size, int) else str(size) for size in value.shape)
        actual = "x".join(map(str, array.shape))
        raise InputError(
            f"the shape of input {value.name!r} is {actual or 'scalar'}, and the file requires {wanted or 'scalar'}: "
            "give inputs of that shape, or export with dynamic shapes"
        )


def run_file(
    path: Path,
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    receive: Callable[[str, Array], None],
    receive_inner: SubgraphReceiver,
    limits: RunLimits,
) -> None:
    """Run a model file and pass each produced tensor to a callback, so that not all are in memory at a time.

    Args:
        path: The file.
        model: The model in it, with its inline weights.
        feeds: The inputs by name.
        receive: Called with the name and content of each tensor of the main graph.
        receive_inner: Called with the path of a subgraph and the name and content of each tensor there.
        limits: The limits of one run.

    Raises:
        InputError: onnxruntime cannot run the file on these inputs.
    """
    try:
        with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(build_ir(path, model)) as ready:
            for name, value in ready.tensors(runner, feeds, ready.produced):
                receive(name, value)
            run_subgraphs(runner, ready, feeds, receive_inner)
    except (FileFormatError, OnnxRunError) as error:
        raise InputError(f"onnxruntime cannot run {path} on these inputs: {error}") from error


def read_initializers(path: Path, model: onnx.ModelProto, names: Collection[str]) -> Iterator[tuple[str, Array]]:
    """The content of these initializers of a model file, one at a time."""
    for tensor in model.graph.initializer:
        if tensor.name in names and tensor.data_type != onnx.TensorProto.STRING:
            yield tensor.name, onnx.numpy_helper.to_array(tensor, base_dir=str(path.parent))
