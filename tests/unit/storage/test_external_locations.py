"""Weights in other files: followed within the folder of the model, and nowhere else."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.support.model_files import CANARY, READERS, external, function, make_model, refused, relu, saved, value

from modelexport.errors import FileFormatError
from modelexport.graph import nodes_of
from modelexport.limits import DEFAULT_LIMITS
from modelexport.storage.opened_file import load, read_model


def in_weight(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return make_model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def in_attribute(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return make_model([helper.make_node("Constant", [], ["y"], value=tensor)])


def in_body(tensor: onnx.TensorProto) -> onnx.ModelProto:
    body = helper.make_graph([relu("w")], "b", [], [value("y")], [tensor])
    return make_model([helper.make_node("If", ["c"], ["y"], then_branch=body)])


def in_body_attribute(tensor: onnx.TensorProto) -> onnx.ModelProto:
    body = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "b", [], [value("y")])
    return make_model([helper.make_node("If", ["c"], ["y"], then_branch=body)])


def in_function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = function("F", [])
    made.node[0].CopyFrom(helper.make_node("Constant", [], ["b"], value=tensor))
    return make_model([helper.make_node("F", ["x"], ["y"], domain="local")], functions=[made])


def in_function_default(tensor: onnx.TensorProto) -> onnx.ModelProto:
    made = function("F", [])
    made.attribute_proto.append(helper.make_attribute("d", tensor))
    return make_model([helper.make_node("F", ["x"], ["y"], domain="local")], functions=[made])


def in_sparse(tensor: onnx.TensorProto) -> onnx.ModelProto:
    model = make_model([relu()])
    indices = helper.make_tensor("i", TensorProto.INT64, [4], [0, 1, 2, 3])
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=tensor, indices=indices, dims=[4]))
    return model


PLACES: list[Callable[[onnx.TensorProto], onnx.ModelProto]] = [
    in_weight,
    in_attribute,
    in_body,
    in_body_attribute,
    in_function,
    in_function_default,
    in_sparse,
]


def evil_location(kind: str, folder: Path) -> str:
    """A location of that kind, and what has to lie there."""
    outside = folder.parent / "canary.data"
    outside.write_bytes(CANARY)
    if kind == "absolute":
        return str(outside)
    if kind == "symlink":
        (folder / "w.data").symlink_to(outside)
    elif kind == "symlinked folder":
        (folder / "sub").symlink_to(folder.parent)
        return "sub/canary.data"
    elif kind == "hardlink":
        (folder / "w.data").hardlink_to(outside)
    elif kind == "fifo":
        os.mkfifo(folder / "w.data")
    elif kind == "folder":
        (folder / "w.data").mkdir()
    return {"..": "../canary.data", "inner ..": "a/../../canary.data", "nul": "w\0.data", "drive": "C:\\w.data"}.get(
        kind, "w.data"
    )


EVIL = ["..", "inner ..", "absolute", "symlink", "symlinked folder", "hardlink", "fifo", "folder", "nul", "drive"]


@pytest.mark.parametrize("kind", EVIL)
@pytest.mark.parametrize("named", ["bare", "relative", "absolute", "cache"])
def test_data_outside_of_the_folder_is_refused_wherever_the_tensor_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, named: str
) -> None:
    folder = tmp_path / "model"
    # In a HuggingFace cache, where links to blobs are followed: those alone.
    blobs = tmp_path / "models--org--name" / "blobs"
    if named == "cache":
        folder = blobs.parent / "snapshots" / "0123abcd"
        blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    location = evil_location(kind, folder)
    monkeypatch.chdir(folder if named == "bare" else tmp_path)
    if named == "cache":
        (folder / "model.onnx").symlink_to("../../blobs/model.onnx")
    for place in PLACES:
        absolute = saved(blobs if named == "cache" else folder, place(external(location)))
        path = {"bare": Path("model.onnx"), "relative": Path("model/model.onnx"), "absolute": absolute}.get(
            named, folder / "model.onnx"
        )
        for reader in READERS:
            with pytest.raises(FileFormatError, match=r"has external data for .*, and .*: it is not read"):
                reader(path)


def test_data_in_the_folder_is_followed_also_from_functions_and_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    (folder / "sub").mkdir(parents=True)
    other.mkdir()
    (folder / "sub" / "w.data").write_bytes(CANARY)
    monkeypatch.chdir(other)
    loaded = load(saved(folder, in_weight(external("sub/w.data", offset=0, length=16))))
    tensor = loaded.model.graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.tobytes() == CANARY
    loaded = load(saved(folder, in_function(external("sub/w.data"))))
    (made,) = loaded.model.functions.values()
    assert made[0].attributes["value"].as_tensor().tobytes() == CANARY


def test_graph_is_read_although_its_data_file_is_missing(tmp_path: Path) -> None:
    path = saved(tmp_path, in_weight(external("gone.data")))
    for reader in READERS:
        assert reader(path)


LIES = {
    "offset beyond the end": {"offset": 4},
    "length of another shape": {"length": 8},
    "a negative offset": {"offset": -4},
    "an offset that is no number": {"offset": "٣"},
    "a huge offset": {"offset": 10**30},
}


@pytest.mark.parametrize("what", LIES)
def test_extent_that_lies_is_refused_without_reading(tmp_path: Path, what: str) -> None:
    (tmp_path / "w.data").write_bytes(CANARY)
    refused(saved(tmp_path, in_weight(external("w.data", **LIES[what]))), "it is not read")


def test_shape_larger_than_memory_is_refused_without_allocating(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(CANARY)
    tensor = external("w.data")
    tensor.dims[:] = [2**30, 2**30]
    refused(saved(tmp_path, in_weight(tensor)), "it is not read")


def test_hard_links_are_followed_where_the_limits_say_so(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(CANARY)
    (tmp_path / "backup.data").hardlink_to(tmp_path / "w.data")
    path = saved(tmp_path, in_weight(external("w.data")))
    refused(path, "hard links")
    for reader in READERS:
        assert reader(path, dataclasses.replace(DEFAULT_LIMITS, linked_data=True))


def cached(tmp_path: Path, blobs: Path | None = None) -> Path:
    """A model in the layout of a HuggingFace cache: links to blobs that are named by their hash."""
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    if blobs is None:
        (repository / "blobs").mkdir()
    else:
        (repository / "blobs").symlink_to(blobs)
    (repository / "blobs" / "aa11").write_bytes(in_weight(external("w.data")).SerializeToString())
    (repository / "blobs" / "bb22").write_bytes(CANARY)
    (snapshot / "model.onnx").symlink_to("../../blobs/aa11")
    (snapshot / "w.data").symlink_to("../../blobs/bb22")
    return snapshot / "model.onnx"


def test_links_of_a_huggingface_cache_are_followed(tmp_path: Path) -> None:
    path = cached(tmp_path)
    assert read_model(path).path == path
    loaded = load(path)
    assert loaded.path == path


def test_cache_whose_blobs_are_elsewhere_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "secrets"
    elsewhere.mkdir()
    refused(cached(tmp_path, elsewhere), "outside its folder")


def test_link_to_a_model_is_read_where_the_model_is(tmp_path: Path) -> None:
    real = tmp_path / "runs"
    real.mkdir()
    (real / "w.data").write_bytes(CANARY)
    path = saved(real, in_weight(external("w.data")))
    (tmp_path / "latest.onnx").symlink_to(path)
    for reader in READERS:
        assert reader(tmp_path / "latest.onnx").path == path.resolve()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="lists what is mapped, on Linux only")
@pytest.mark.parametrize("place", [in_weight, in_attribute, in_body, in_body_attribute, in_function])
def test_data_file_is_read_and_not_mapped_wherever_the_tensor_is(
    place: Callable[[onnx.TensorProto], onnx.ModelProto], tmp_path: Path
) -> None:
    (tmp_path / "w.data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    model = load(saved(tmp_path, place(external("w.data")))).model
    tensors = [v.const_value for graph in model.graphs() for v in graph.initializers.values()]
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    tensors += [a.value for graph in graphs for node in nodes_of(graph) for a in node.attributes.values()]
    (tensor,) = (tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor))
    assert np.array_equal(tensor.numpy(), [0, 1, 2, 3])
    assert np.array_equal(np.asarray(tensor), [0, 1, 2, 3])
    assert "w.data" not in Path("/proc/self/maps").read_text(encoding="utf-8")
    os.truncate(tmp_path / "w.data", 8)
    for read in (tensor.numpy, tensor.tobytes):
        with pytest.raises(FileFormatError, match=r"'w\.data' ends within it"):
            read()


def test_elements_of_half_a_byte_are_read(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(b"\x21\x43")
    tensor = external("w.data")
    tensor.data_type = TensorProto.INT4
    (weight,) = load(saved(tmp_path, in_weight(tensor))).model.graph.initializers.values()
    assert weight.const_value is not None
    assert weight.const_value.numpy().astype(np.int8).tolist() == [1, 2, 3, 4]


def test_data_file_replaced_by_a_link_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "w.data").write_bytes(bytes(16))
    (tmp_path / "outside.data").write_bytes(CANARY * 4)
    (weight,) = load(saved(folder, in_weight(external("w.data")))).model.graph.initializers.values()
    (folder / "w.data").unlink()
    (folder / "w.data").symlink_to(tmp_path / "outside.data")
    assert weight.const_value is not None
    with pytest.raises(FileFormatError, match="is a link to outside its folder"):
        weight.const_value.numpy()
