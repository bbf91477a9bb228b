"""Fingerprints of all tensors of a graph from one run; the contents are not kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from modelexport.errors import FileFormatError
from modelexport.graph import Fingerprint, take_fingerprint
from modelexport.ort import PreparedModel, Runner

Fingerprints = Mapping[ir.Value, Fingerprint]


def fingerprint_tensors(
    runner: Runner, model: ir.Model, ready: PreparedModel, feeds: Mapping[str, npt.NDArray[Any]]
) -> dict[ir.Value, Fingerprint]:
    """Fingerprints of inputs, weights and every tensor that nodes of a model's main graph produce.

    Tensors that are empty or not numeric have none.

    Args:
        runner: Runs the model.
        model: The model.
        ready: The same model, prepared for runs.
        feeds: Its inputs by name.

    Raises:
        OnnxRunError: onnxruntime cannot run the model on these inputs.
        FileFormatError: A weight cannot be read.
    """
    found: dict[ir.Value, Fingerprint] = {}

    def keep(value: ir.Value, array: npt.NDArray[Any]) -> None:
        itemsize = value.dtype.itemsize if value.dtype is not None else array.itemsize
        fingerprint = take_fingerprint(array, max(int(itemsize), 1))
        if fingerprint is not None:
            found[value] = fingerprint

    for value in model.graph.inputs:
        if value.name is not None and value.name in feeds:
            keep(value, feeds[value.name])
    for value in model.graph.initializers.values():
        if value.const_value is not None and value not in found:
            keep(value, _content(value.const_value))
    produced = {value.name: value for node in model.graph for value in node.outputs if value.name}
    for name, array in ready.tensors(runner, feeds, ready.produced):
        keep(produced[name], array)
    return found


def _content(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    try:
        array = np.asarray(tensor.numpy())
    except Exception as error:
        raise FileFormatError(f"the weight {tensor.name!r} cannot be read: {type(error).__name__}: {error}") from error
    if array.dtype.kind in "fiub" or tensor.dtype == ir.DataType.STRING:
        return array
    return array.astype(np.float32)
