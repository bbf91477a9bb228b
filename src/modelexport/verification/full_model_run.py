"""Run the full ONNX model on PyTorch's inputs and return any of its tensors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from modelexport.errors import InputError, OnnxRunError
from modelexport.graph import named_values
from modelexport.ort import PreparedModel, Runner
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
