"""The whole ONNX model, run as often as needed to see all the tensors that are asked for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from modelexport.errors import InputError, OnnxRunError
from modelexport.ort import PreparedModel, Runner
from modelexport.verification.graph_inputs import GraphInputs
from modelexport.verification.module_run import content


class WholeRun:
    """Gives tensors of the main graph, with the model's inputs as PyTorch had them.

    Args:
        model: The model.
        ready: The same model, prepared for runs.
        inputs: The tensors for the graph's inputs.

    Raises:
        InputError: The file does not take what the model was given.
    """

    def __init__(self, model: ir.Model, ready: PreparedModel, inputs: GraphInputs) -> None:
        self._ready = ready
        self._values = _main_values(model.graph)
        self.error = ""
        self._feeds: dict[str, np.ndarray] = {}
        for value in model.graph.inputs:
            name = value.name or ""
            if name in inputs.tensors:
                array = content(inputs.tensors[name])
                self._feeds[name] = array
                _check_shape(value, array)
            elif not value.is_initializer():
                self.error = inputs.explain()

    def has(self, tensor: str | None) -> bool:
        """Whether the main graph has a tensor of that name."""
        return tensor in self._values

    def fetch(self, runner: Runner, tensors: Iterable[str]) -> dict[str, np.ndarray]:
        """The content of these tensors; none of what the runtime makes where it cannot run the model."""
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


def _main_values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name: value for value in values if value.name}


def _check_shape(value: ir.Value, array: np.ndarray) -> None:
    if value.shape is None:
        return
    fits = len(value.shape) == array.ndim and all(
        not isinstance(wanted, int) or wanted == size for wanted, size in zip(value.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = "x".join("?" if not isinstance(size, int) else str(size) for size in value.shape)
        given = "x".join(map(str, array.shape))
        raise InputError(
            f"input {value.name!r} is {given or 'a single number'}, and the file takes {wanted or 'a single number'}: "
            "give inputs of that shape, or export with dynamic shapes"
        )
