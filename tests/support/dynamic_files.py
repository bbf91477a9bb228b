"""The dynamic axes of a file, and whether it is right at other sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from modelexport.capture.dynamic_axes import ExampleCall
from modelexport.torch_support.tensor_paths import named_results


def plain(name: str) -> str:
    """The name of an input without what exporters write differently in it."""
    return name.replace(".", "_")


def dimensions(path: Path) -> dict[str, dict[int, str]]:
    graph = onnx.load_model(path).graph
    return {
        plain(value.name): {axis: d.dim_param for axis, d in enumerate(value.type.tensor_type.shape.dim) if d.dim_param}
        for value in graph.input
    }


def same_at_other_sizes(model: nn.Module, call: ExampleCall, path: Path, axes: dict[str, dict[int, str]]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = sorted({name for axes_of_one in axes.values() for name in axes_of_one.values()})
    for more in (1, 4):
        # Each dimension another size, so that one taken for another is seen.
        grown = {name: more + number for number, name in enumerate(names)}
        places = {(tensor, axis): grown[name] for tensor, found in axes.items() for axis, name in found.items()}
        sizes = {place: call.tensors()[place[0]].shape[place[1]] + by for place, by in places.items()}
        other = call.resized(sizes)
        with torch.no_grad():
            wanted = [tensor for _, tensor in named_results(model(*other.args, **other.kwargs))]
        tensors = {plain(name): tensor.numpy() for name, tensor in other.tensors().items()}
        got = session.run(None, {i.name: tensors[plain(i.name)] for i in session.get_inputs()})
        for tensor, array in zip(wanted, got, strict=True):
            np.testing.assert_allclose(array, tensor.numpy(), atol=1e-5)
