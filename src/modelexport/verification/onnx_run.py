"""Run a full ONNX model on PyTorch's inputs, and those that its exporter computes from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from modelexport.display import with_class
from modelexport.errors import InputError, OnnxRunError
from modelexport.graph import named_values, shapes_compatible
from modelexport.hierarchy import ROOT_CALL, HierarchyDocument
from modelexport.ort import PreparedModel, Runner
from modelexport.storage import find_hierarchy, read_model
from modelexport.torch_support import copied_inputs, named_arguments, normalize_inputs, tensors_in
from modelexport.torch_support.transformers_private import prepared_inputs
from modelexport.verification.pytorch_run import array_of, reference_run

# The exporter of transformers computes some arguments before the forward pass, because forward computes them in a way
# that cannot be traced. Its files have them as inputs.
_PREPARES_INPUTS = "transformers"


class GraphInputs:
    """The tensors for the inputs of a graph, including those that its exporter computes.

    Attributes:
        tensors: The tensor for each wanted input.
        missing: The wanted inputs without a tensor.
        why: Why the exporter's preparation failed; empty if it succeeded or does not exist.
    """

    def __init__(
        self,
        document: HierarchyDocument,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        wanted: Sequence[str],
    ) -> None:
        root = (call for call in document.calls if call.id == str(ROOT_CALL))
        boundary = {tensor.tensor: tensor.name for call in root for tensor in call.inputs}
        arguments = next((module.forward_arguments for module in document.modules if module.path == ""), ())
        given = dict(named_arguments(arguments, args, kwargs))
        self.why = ""
        if document.exporter == _PREPARES_INPUTS and any(boundary.get(name, name) not in given for name in wanted):
            positional = [argument.name for argument in arguments if argument.kind.startswith("positional")]
            computed, self.why = _prepared(model, {**dict(zip(positional, args, strict=False)), **kwargs})
            given = {**computed, **given}
        self.tensors = {name: given[boundary.get(name, name)] for name in wanted if boundary.get(name, name) in given}
        self.missing = [name for name in wanted if name not in self.tensors]

    def explain(self) -> str:
        """The missing inputs, and what to do."""
        problem = f"no tensor for {', '.join(map(repr, self.missing))}"
        if self.why:
            problem += f", which the exporter of transformers computes from the other inputs; that failed ({self.why})"
        return f"{problem}: give the inputs that the file was exported with, by name"


def feeds_of_file(path: str | Path, model: torch.nn.Module, example_inputs: Any) -> dict[str, np.ndarray]:
    """The inputs of a file by name, from example inputs of the model that it was exported from.

    Raises:
        InputError: The example inputs do not have a tensor for an input of the file.
        FileFormatError: The file is not an ONNX model, or has no hierarchy.
    """
    file = read_model(path)
    graph = file.proto.graph
    weights = {weight.name for weight in graph.initializer}
    wanted = [value.name for value in graph.input if value.name not in weights]
    args, kwargs = normalize_inputs(example_inputs, None, model)
    found = GraphInputs(find_hierarchy(file).document, model, args, kwargs, wanted)
    if found.missing:
        raise InputError(f"{file.path}: {found.explain()}")
    return {name: array_of(tensor) for name, tensor in found.tensors.items()}


def _prepared(model: torch.nn.Module, kwargs: dict[str, Any]) -> tuple[dict[str, torch.Tensor], str]:
    """The inputs as the exporter of transformers prepares them for tracing, or why that fails."""
    _, copied = copied_inputs((), kwargs)
    with reference_run(model):
        try:
            inputs = prepared_inputs(model, copied)
        except Exception as error:  # noqa: BLE001  a model may raise anything; its own inputs are used then
            return {}, with_class(error)
    return {name: tensor for key, value in inputs.items() for name, tensor in tensors_in(value, key)}, ""


class FullModelRun:
    """Returns tensors of the main graph, computed from PyTorch's inputs.

    `ready` is the same model, prepared for runs. `error` says why it could not run; it is empty if it could.
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
    if value.shape is not None and not shapes_compatible(value.shape, array.shape):
        wanted = "x".join("?" if not isinstance(size, int) else str(size) for size in value.shape)
        actual = "x".join(map(str, array.shape))
        raise InputError(
            f"the shape of input {value.name!r} is {actual or 'scalar'}, and the file requires {wanted or 'scalar'}: "
            "give inputs of that shape, or export with dynamic shapes"
        )
