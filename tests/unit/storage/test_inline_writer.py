"""Models written weight by weight have the bytes that onnx_ir writes."""

from __future__ import annotations

import io
import os
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import zoo

from modelexport.errors import FileFormatError
from modelexport.limits import DEFAULT_LIMITS
from modelexport.storage.external_data import DataFolder, ReadTensor
from modelexport.storage.inline_writer import save_inline
from modelexport.storage.wire_format import ExporterFile, read_skeleton
from modelexport.torch_support.private_jit import weights_apart

_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn]


def _model(arrays: list[ir.TensorProtocol]) -> ir.Model:
    values = [ir.Value(name=f"w{i}", const_value=tensor) for i, tensor in enumerate(arrays)]
    for value, tensor in zip(values, arrays, strict=True):
        value.shape, value.dtype = ir.Shape([int(n) for n in tensor.shape]), tensor.dtype
        tensor.name = value.name
    given_value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Identity", [given_value], name="n")
    node.outputs[0].name = "y"
    graph = ir.Graph([given_value], node.outputs, nodes=[node], initializers=values, opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=10)


def _expected(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 3, 1023, 1024, 1025, 5000]), max_size=4), seed=st.integers(0, 99))
def test_bytes_are_those_of_onnx_ir_for_weights_of_all_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    model = _model([ir.tensor(rng.standard_normal(size).astype(np.float32)) for size in sizes])
    path = tmp_path_factory.mktemp("save") / "m.onnx"
    save_inline(model, path)
    assert path.read_bytes() == _expected(model)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_bytes_are_those_of_onnx_ir_for_tensors_of_torch(tmp_path: Path, dtype: torch.dtype) -> None:
    from torch.onnx._internal.exporter._core import TorchTensor

    torch.manual_seed(0)
    values = torch.randn(64, 128).to(dtype)
    model = _model([TorchTensor(values), TorchTensor(values.t()), TorchTensor(values[::2])])
    save_inline(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == _expected(model)


def test_transposed_weight_is_not_written_element_by_element(tmp_path: Path) -> None:
    class Watched(np.ndarray):
        """An array whose `tofile` takes contiguous arrays only: of others numpy writes each element on its own."""

        def tofile(self, *args: Any, **kwargs: Any) -> None:
            assert self.flags.c_contiguous
            super().tofile(*args, **kwargs)

    rows = np.arange(64 * 128, dtype=np.float32).reshape(64, 128).view(Watched)
    model = _model([ir.Tensor(rows), ir.Tensor(rows.T)])
    save_inline(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == _expected(model)


def test_model_has_its_weights_again_after_a_failed_write(tmp_path: Path) -> None:
    model = _model([ir.tensor(np.zeros(5000, dtype=np.float32))])
    before = _expected(model)
    with pytest.raises(OSError, match="missing"):
        save_inline(model, tmp_path / "missing" / "m.onnx")
    assert _expected(model) == before


def test_nodes_are_replaced_without_touching_the_weights(tmp_path: Path) -> None:
    example = zoo.build("cnn")
    program = torch.onnx.export(example.model, (example.inputs,), None, verbose=False)
    file = _expected(program.model)
    skeleton = ExporterFile(file).skeleton()
    assert len(skeleton.SerializeToString()) < len(file)
    for node in skeleton.graph.node:
        node.doc_string = f"about {node.name}"
    skeleton.metadata_props.add(key="k", value="v")
    changed = onnx.load_model_from_string(b"".join(ExporterFile(file).pieces(skeleton)))
    assert [node.doc_string for node in changed.graph.node] == [f"about {n.name}" for n in changed.graph.node]
    assert [(entry.key, entry.value) for entry in changed.metadata_props] == [("k", "v")]
    for node in changed.graph.node:
        node.ClearField("doc_string")
    del changed.metadata_props[:]
    assert changed == onnx.load_model_from_string(file)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 900, 1025, 40_000]), min_size=1, max_size=4), whole=st.integers(0, 4))
def test_weights_that_lie_beside_a_file_are_put_into_it(sizes: list[int], whole: int) -> None:
    """Some of the weights are in the file, the rest has whatever the exporter writes in their place."""
    arrays = [np.arange(size, dtype=np.float32) for size in sizes]
    model = ir.to_proto(_model([ir.tensor(array) for array in arrays]))
    expected = model.SerializeToString()
    weights = {tensor.name: tensor.raw_data for tensor in model.graph.initializer[whole:]}
    for tensor in model.graph.initializer[whole:]:
        tensor.raw_data = b"elsewhere"
    file = ExporterFile(model.SerializeToString(), weights)
    assert b"".join(file.pieces()) == expected
    assert b"".join(file.pieces(file.skeleton())) == expected
    for tensor, array in zip(file.skeleton().graph.initializer, arrays, strict=True):
        assert tensor.raw_data in ((array.tobytes(),) if array.nbytes <= 4000 else (b"",))


def test_exporter_gives_the_weights_apart_and_only_to_the_thread_that_asked(tmp_path: Path) -> None:
    example = zoo.build("cnn")

    def export(name: str) -> bytes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(example.model, (example.inputs,), str(tmp_path / name), dynamo=False)
        return (tmp_path / name).read_bytes()

    plain = export("plain.onnx")
    with weights_apart() as weights:
        hollow = export("hollow.onnx")
        apart = dict(weights)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(export, "thread.onnx").result() == plain
    assert weights == apart
    assert len(hollow) < len(plain) - sum(map(len, weights.values())) // 2
    assert b"".join(ExporterFile(hollow, weights).pieces()) == plain
    assert export("again.onnx") == plain


@pytest.mark.parametrize("data", [b"\x08", b"\x3a\xff\x01", b"\x3b", b"\x80" * 12])
def test_bytes_that_are_not_protobuf_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"byte|beyond|wire type"):
        read_skeleton(io.BytesIO(data), len(data))


def test_external_weight_is_written_part_by_part(tmp_path: Path) -> None:
    size = 2**27
    with (tmp_path / "w.data").open("wb") as file:
        file.write(b"head")
        file.seek(4 + size - 1)
        file.write(b"\x01")
    mapped = ir.ExternalTensor("w.data", 4, size, ir.DataType.UINT8, shape=ir.Shape([size]), name="w")
    tensor = ReadTensor(mapped, DataFolder(tmp_path / "model.onnx", DEFAULT_LIMITS))
    value = ir.Value(name="w", const_value=tensor)
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value]), ir_version=10)
    tracemalloc.start()
    save_inline(model, tmp_path / "model.onnx", external=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 2
    assert value.const_value is tensor
    written = onnx.load(tmp_path / "model.onnx").graph.initializer[0]
    assert (len(written.raw_data), written.raw_data[-1], written.data_location) == (size, 1, 0)
    os.truncate(tmp_path / "w.data", size // 2)
    with pytest.raises(FileFormatError, match=r"weight 'w', and 'w\.data' ends within it"):
        save_inline(model, tmp_path / "model.onnx", external=True)
    (tmp_path / "w.data").unlink()
    with pytest.raises(FileFormatError, match="does not exist"):
        save_inline(model, tmp_path / "model.onnx", external=True)
