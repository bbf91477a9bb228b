"""Models made ready to run: any tensor as an output, weights in files, and types that numpy does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.support.hostile_graphs import model

from modelexport.errors import FileFormatError, OnnxRunError
from modelexport.ort import prepared_model
from modelexport.ort.prepared_model import PreparedModel, prepared
from modelexport.ort.runner import Runner

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as shared:
        yield shared


def chain(*names: str) -> onnx.ModelProto:
    """``x`` plus the weight ``w``, once for each name."""
    inputs = ["x", *names[:-1]]
    nodes = [helper.make_node("Add", [one, "w"], [two]) for one, two in zip(inputs, names, strict=True)]
    found = model(*nodes, shape=(4000,))
    found.graph.initializer.append(onnx.numpy_helper.from_array(np.full(4000, 3, np.float32), "w"))
    return found


X = {"x": np.ones(4000, np.float32)}


def test_tensors_inside_the_graph_can_be_had_and_the_model_stays_as_it_is(runner: Runner) -> None:
    original = ir.from_proto(chain("a", "y"))
    with prepared(original) as ready:
        found = dict(ready.tensors(runner, X, ready.produced))
        assert {name: array[0] for name, array in found.items()} == {"a": 4, "y": 7}
        assert dict(ready.tensors(runner, X)).keys() == {"y"}
    assert [value.name for value in original.graph.outputs] == ["y"]
    assert isinstance(original.graph.initializers["w"].const_value, ir.TensorProtocol)
    assert not isinstance(original.graph.initializers["w"].const_value, ir.ExternalTensor)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("_GROUP_TENSORS", 1), ("_GROUP_BYTES", 1), ("_INLINE_BYTES", 0)],
    ids=["one tensor a run", "no bytes to spare", "weights in a temporary file"],
)
def test_every_tensor_is_had_in_any_grouping(
    runner: Runner, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    original = runner.run
    monkeypatch.setattr(runner, "run", lambda *args: (runs.append(args), original(*args))[1])
    monkeypatch.setattr(prepared_model, limit, value)
    with prepared(ir.from_proto(chain("a", "b", "y"))) as ready:
        found = dict(ready.tensors(runner, X, ready.produced))
    assert {name: array[0] for name, array in found.items()} == {"a": 4, "b": 7, "y": 10}
    assert len(runs) == (1 if limit == "_INLINE_BYTES" else 3)
    # The weights of 16 kB travel with each run, or not at all.
    assert all((len(args[0][0]) < 4000) == (limit == "_INLINE_BYTES") for args in runs)


def test_external_weights_are_read_from_their_own_folder(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(chain("y"), path, save_as_external_data=True, location="net.data", size_threshold=0)
    with prepared(ir.load(path)) as ready:
        assert ready.folder == tmp_path
        assert dict(ready.tensors(runner, X))["y"][0] == 4


def test_small_external_weight_may_be_a_shape(runner: Runner, tmp_path: Path) -> None:
    reshaped = model(helper.make_node("Reshape", ["x", "size"], ["y"]))
    reshaped.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "size"))
    path = tmp_path / "net.onnx"
    onnx.save(reshaped, path, save_as_external_data=True, location="net.data", size_threshold=0)
    with prepared(ir.load(path)) as ready:
        assert dict(ready.tensors(runner, {"x": np.ones(6, np.float32)}))["y"].shape == (2, 3)


def test_missing_external_data_is_an_error_of_ours(tmp_path: Path) -> None:
    reshaped = model(helper.make_node("Reshape", ["x", "size"], ["y"]))
    reshaped.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "size"))
    path = tmp_path / "net.onnx"
    onnx.save(reshaped, path, save_as_external_data=True, location="net.data", size_threshold=0)
    loaded = ir.load(path)
    (tmp_path / "net.data").unlink()
    with pytest.raises(FileFormatError, match="the weight 'size' cannot be read: "), prepared(loaded):
        pass


def test_bfloat16_goes_in_and_out_as_float(runner: Runner) -> None:
    narrow = model(helper.make_node("Identity", ["x"], ["y"]), kind=TensorProto.BFLOAT16)
    found = dict(PreparedModel(narrow, None).tensors(runner, {"x": np.array([1.0, -2.5, 1.00390625], np.float32)}))
    # The last lies between two numbers of the type.
    assert found["y"].tolist() == [1.0, -2.5, 1.0]
    assert found["y"].dtype == np.float32


def test_inputs_are_converted_to_the_declared_type(runner: Runner) -> None:
    half = model(helper.make_node("Identity", ["x"], ["y"]), kind=TensorProto.FLOAT16)
    assert dict(PreparedModel(half, None).tensors(runner, {"x": np.ones(2)}))["y"].dtype == np.float16


def test_repeated_node_names_do_not_matter_and_others_stay_in_errors(runner: Runner) -> None:
    nodes = [helper.make_node("Neg", [one], [two], name="same") for one, two in (("x", "a"), ("a", "y"))]
    assert dict(PreparedModel(model(*nodes), None).tensors(runner, X))["y"][0] == 1
    failing = model(helper.make_node("Reshape", ["x", "size"], ["y"], name="my_reshape"))
    failing.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7]), "size"))
    with pytest.raises(OnnxRunError, match="my_reshape"):
        list(PreparedModel(failing, None).tensors(runner, X))


def test_model_that_cannot_be_serialized_is_an_error_of_ours() -> None:
    broken = ir.from_proto(chain("y"))
    broken.producer_name = "\udc80"
    with pytest.raises(FileFormatError, match="the model cannot be serialized: UnicodeEncodeError"), prepared(broken):
        pass
