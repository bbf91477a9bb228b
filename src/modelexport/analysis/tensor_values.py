"""What each tensor of a graph holds when it runs, by fingerprints: the content itself is not kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError
from modelexport.fingerprints import Fingerprint, take_fingerprint
from modelexport.runtime.process import OnnxProcess, with_outputs

Fingerprints = Mapping[ir.Value, Fingerprint]

# So many tensors come out of one run, so that those of a large graph are not all held at once.
_GROUP = 128


def fingerprint_tensors(
    process: OnnxProcess, model: ir.Model, feeds: Mapping[str, npt.NDArray[Any]], folder: Path
) -> dict[ir.Value, Fingerprint]:
    """Fingerprints of inputs, weights and all that the nodes of a model's main graph make.

    What is empty or no tensor of numbers has none.

    Args:
        process: Where to run the model.
        model: The model.
        feeds: Its inputs by name.
        folder: Where weights are that lie in other files.

    Raises:
        OnnxRunError: onnxruntime cannot run the model on these inputs.
        FileFormatError: Its weights cannot be read, or the graph cannot be handed on.
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
    made = [value for node in model.graph for value in node.outputs if value.name]
    for start in range(0, len(made), _GROUP):
        group = {value.name: value for value in made[start : start + _GROUP]}
        for name, array in process.run(_graph_to_run(model, group.values()), feeds, folder=folder).items():
            keep(group[name], array)
    return found


def _graph_to_run(model: ir.Model, values: Iterable[ir.Value]) -> onnx.ModelProto:
    try:
        proto = with_outputs(model, values)
    except Exception as error:
        # Files can hold what nothing can write again: text that is not UTF-8, a tensor that contradicts its shape.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise FileFormatError(f"the graph holds what cannot be handed on: {type(cause).__name__}: {cause}") from error
    for node in proto.graph.node:
        # Names of nodes may repeat in ONNX, and onnxruntime refuses that.
        node.name = ""
    return proto


def _content(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    try:
        array = np.asarray(tensor.numpy())
    except Exception as error:
        raise FileFormatError(f"the weights {tensor.name!r} cannot be read: {type(error).__name__}: {error}") from error
    if array.dtype.kind in "fiub" or tensor.dtype == ir.DataType.STRING:
        return array
    return array.astype(np.float32)
