"""Small untrusted model files, and both readers refusing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from modelexport.errors import FileFormatError
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage.opened_file import load, read_model

READERS: list[Callable[..., Any]] = [read_model, load]
CANARY = np.arange(4, dtype=np.float32).tobytes()


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])


def make_model(
    nodes: list[onnx.NodeProto],
    weights: list[onnx.TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], weights or [])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def relu(source: str = "x", target: str = "y") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target])


def function(name: str, calls: list[str]) -> onnx.FunctionProto:
    nodes = [helper.make_node(called, ["a"], [f"v{i}"], domain="local") for i, called in enumerate(calls)]
    nodes.append(helper.make_node("Relu", ["a"], ["b"]))
    return helper.make_function("local", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 20)])


def saved(folder: Path, model: onnx.ModelProto | bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def refused(path: Path, message: str, limits: ReadLimits = DEFAULT_LIMITS) -> None:
    for reader in READERS:
        with pytest.raises(FileFormatError, match=message) as raised:
            reader(path, limits)
        assert str(path.parent) in str(raised.value)


def external(location: str | None, **entries: object) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, content in {"location": location, **entries}.items():
        if content is not None:
            tensor.external_data.add(key=key, value=str(content))
    return tensor
