"""Statistics of weights: exact or of a sample, within a limit, and never from outside the model's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.support.scoped_models import scoped

from modelexport.errors import FileFormatError
from modelexport.storage import read_model
from modelexport.viewing.page_data import Weight
from modelexport.viewing.weight_statistics import weight_table

LARGE = (1024, 1100)


def written(path: Path, *weights: TensorProto, external: bool = False) -> Path:
    node = scoped(helper.make_node("Relu", ["x"], ["y"]), "act", "models.Act")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save_model(model, path, save_as_external_data=external, location="data.bin", size_threshold=0)
    return path


def table(path: Path, read_bytes: int = 2**30) -> tuple[dict[str, Weight], list[str]]:
    file = read_model(path)
    weights, notes = weight_table(file, dict(enumerate(file.proto.graph.initializer)), read_bytes)
    return {file.proto.graph.initializer[number].name: weight for number, weight in weights.items()}, notes


def array(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("external", [False, True])
def test_statistics_are_those_of_the_elements(tmp_path: Path, external: bool) -> None:
    content = array((64, 32))
    content[:8] = 0
    weights, notes = table(written(tmp_path / "m.onnx", numpy_helper.from_array(content, "w"), external=external))
    found = weights["w"]
    assert (found.bytes, found.elements, found.external, found.sampled) == (8192, 2048, external, False)
    expected = [content.min(), content.max(), content.mean(), content.std(), 0.125]
    assert [found.min, found.max, found.mean, found.std, found.zeros] == pytest.approx(expected, rel=1e-5)
    assert notes == []


def test_infinite_elements_are_counted_and_left_out(tmp_path: Path) -> None:
    content = np.array([1, np.inf, -np.inf, np.nan, 3], np.float32)
    weights, _ = table(written(tmp_path / "m.onnx", numpy_helper.from_array(content, "w")))
    found = weights["w"]
    assert (found.nonfinite, found.min, found.max, found.mean) == (3, 1, 3, 2)


@pytest.mark.parametrize("external", [False, True])
def test_large_weight_is_sampled_and_the_page_says_so(tmp_path: Path, external: bool) -> None:
    content = array(LARGE)
    weights, notes = table(written(tmp_path / "m.onnx", numpy_helper.from_array(content, "w"), external=external))
    found = weights["w"]
    assert found.sampled
    assert found.mean == pytest.approx(0, abs=0.01)
    assert found.std == pytest.approx(1, abs=0.01)
    assert "1 weight of more than 4 MiB are those of a sample" in notes[0]


def test_weights_beyond_the_limit_are_left_out_and_named(tmp_path: Path) -> None:
    both = [numpy_helper.from_array(array((64, 64), seed), f"w{seed}") for seed in range(2)]
    weights, notes = table(written(tmp_path / "m.onnx", *both), read_bytes=20_000)
    assert weights["w0"].mean is not None
    assert (weights["w1"].mean, weights["w1"].bytes) == (None, 16_384)
    assert "w1" in notes[0]
    assert "left out" in notes[0]


def test_small_weight_shows_its_content(tmp_path: Path) -> None:
    weights, _ = table(written(tmp_path / "m.onnx", numpy_helper.from_array(np.array([1, -1, 64]), "shape")))
    assert weights["shape"].text == "[1, -1, 64]"


def test_half_precision_has_statistics_and_four_bits_and_text_have_none(tmp_path: Path) -> None:
    half = numpy_helper.from_array(array((64, 64)).astype(np.float16), "half")
    four = helper.make_tensor("four", TensorProto.INT4, [4], [1, 2, 3, 4])
    text = helper.make_tensor("text", TensorProto.STRING, [1], [b"<b>"])
    weights, _ = table(written(tmp_path / "m.onnx", half, four, text))
    assert weights["half"].std == pytest.approx(1, abs=0.05)
    assert (weights["four"].mean, weights["text"].mean) == (None, None)


def test_missing_data_file_is_a_note(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", numpy_helper.from_array(array((64, 32)), "w"), external=True)
    (tmp_path / "data.bin").unlink()
    weights, notes = table(path)
    assert weights["w"].mean is None
    assert "data is missing or cannot be read (w)" in notes[0]


def test_data_outside_the_folder_is_never_read(tmp_path: Path) -> None:
    inside = tmp_path / "models"
    inside.mkdir()
    path = written(inside / "m.onnx", numpy_helper.from_array(array((64, 32)), "w"), external=True)
    (inside / "data.bin").rename(tmp_path / "secret.bin")
    (inside / "data.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(FileFormatError, match="link to outside its folder"):
        table(path)
