"""Contents of weights: read in parts from wherever the file stores them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelexport.errors import FileFormatError
from modelexport.storage import WeightReader, read_model

CONTENT = np.arange(300_000, dtype=np.float32)


def opened(path: Path, weight: TensorProto, **options: object) -> tuple[WeightReader, TensorProto]:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    # A node and another weight before it: its place in the file is not the first.
    first = numpy_helper.from_array(np.ones(2_000, np.float32), "first")
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", 1, [1])], [first, weight])
    onnx.save_model(helper.make_model(graph, ir_version=10), path, **options)
    file = read_model(path)
    return WeightReader(file), file.proto.graph.initializer[1]


STORED = {
    "raw bytes": (lambda: numpy_helper.from_array(CONTENT, "w"), {}),
    "numbers": (lambda: helper.make_tensor("w", TensorProto.FLOAT, CONTENT.shape, CONTENT), {}),
    "external": (
        lambda: numpy_helper.from_array(CONTENT, "w"),
        {"save_as_external_data": True, "location": "data.bin", "size_threshold": 0},
    ),
}


@pytest.mark.parametrize("stored", STORED)
def test_weight_is_read_whole_and_in_part(tmp_path: Path, stored: str) -> None:
    build, options = STORED[stored]
    reader, tensor = opened(tmp_path / "m.onnx", build(), **options)
    assert b"".join(reader.chunks(tensor)) == CONTENT.tobytes()
    assert reader.part(tensor, 4_000, 80) == CONTENT[1_000:1_020].tobytes()


def test_content_of_another_size_than_its_shape_is_refused(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(CONTENT, "w")
    weight.dims[0] += 1
    reader, tensor = opened(tmp_path / "m.onnx", weight)
    with pytest.raises(FileFormatError, match="has 1200000 bytes, but its shape needs 1200004"):
        reader.part(tensor, 0, 8)


def test_file_that_was_cut_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    reader, tensor = opened(path, numpy_helper.from_array(CONTENT, "w"))
    assert reader.part(tensor, 0, 4) == CONTENT[:1].tobytes()
    with path.open("r+b") as stream:
        stream.truncate(600_000)
    with pytest.raises(FileFormatError, match="ends within weight 'w'"):
        reader.part(tensor, 1_000_000, 4)
