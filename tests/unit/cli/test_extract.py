"""`modelexport extract` on the command line, and the files it writes; external weights are not copied needlessly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from tests.conftest import Exporter
from tests.support.command_process import files_in
from typer.testing import CliRunner

import modelexport
from modelexport.analysis.extraction.call_boundary import ExtractionPlan, ExtractionPlanner
from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.extraction.submodel import Submodel
from modelexport.analysis.extraction.submodel_files import file_names, write_submodel
from modelexport.cli.main import app
from modelexport.errors import ExtractionError, InputError
from modelexport.graph.digest import graph_hash
from modelexport.graph.node_ids import nodes_with_ids, operation
from modelexport.graph.tensors import tensors_with_ids
from modelexport.hierarchy.calls import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.hierarchy.document import CallRecord
from modelexport.hierarchy.document_codec import encode_document
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree, TensorInfo
from modelexport.hierarchy.tags import TagView
from modelexport.storage.document_builder import build_document
from modelexport.storage.metadata_stores import write_stores
from modelexport.storage.transaction import sidecar_path

pytestmark = pytest.mark.integration


@pytest.mark.xdist_group("bert")
def test_one_module_is_written_with_its_sidecar(exported: Exporter, tmp_path: Path) -> None:
    target = tmp_path / "layer.onnx"
    command = ["extract", str(exported("bert").path), "encoder.layer.0", "-o", str(target)]
    result = CliRunner().invoke(app, [*command, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["call"] == "encoder.layer.0"
    assert [port["name"] for port in told["inputs"]] == ["hidden_states", "attention_mask"]
    assert told["files"] == [str(target), str(sidecar_path(target))]
    onnx.checker.check_model(target, full_check=True)
    assert modelexport.load(target).missing == ""
    with pytest.raises(InputError, match="it exists"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert CliRunner().invoke(app, [*command, "--force"], catch_exceptions=False).exit_code == 0


@pytest.mark.xdist_group("bert")
def test_many_modules_are_written_with_a_manifest(exported: Exporter, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "layers"
    command = ["extract", str(exported("bert").path), "--select", "class:BertLayer", "-o", str(folder)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [entry["call"] for entry in manifest["submodels"]] == ["encoder.layer.0", "encoder.layer.1"]
    assert manifest["refused"] == []
    for entry in manifest["submodels"]:
        onnx.checker.check_model(folder / entry["file"])


@pytest.mark.xdist_group("cnn")
def test_refused_modules_are_listed_and_the_exit_code_says_so(exported: Exporter, tmp_path: Path) -> None:
    command = ["extract", str(exported("cnn").path), "--select", "class:BatchNorm2d or class:Linear"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "cut")], catch_exceptions=False)
    assert result.exit_code == 1
    manifest = json.loads((tmp_path / "cut" / "manifest.json").read_text())
    assert [entry["call"] for entry in manifest["submodels"]] == ["head"]
    assert {entry["reason"] for entry in manifest["refused"]} == {"fused"}
    assert manifest["refused"][0]["fused_with"] == ["features.0.conv"]


@pytest.mark.xdist_group("cnn")
def test_prose_fits_the_terminal_and_commands_stay_in_one_line(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    alone = tmp_path / "without-sidecar.onnx"
    alone.write_bytes(exported("cnn").path.read_bytes())
    target = tmp_path / f"{'long' * 20}.onnx"
    one = CliRunner().invoke(app, ["extract", str(alone), "head", "-o", str(target)], catch_exceptions=False)
    many = ["extract", str(exported("cnn").path), "--select", "class:BatchNorm2d", "-o", str(tmp_path / "cut")]
    lines = [*one.stdout.splitlines(), *CliRunner().invoke(app, many, catch_exceptions=False).stdout.splitlines()]
    assert any("  note: there is no sidecar" in line for line in lines)
    assert any(": refused, " in line for line in lines)
    assert f"next: modelexport tree {target}" in lines
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)


@pytest.mark.xdist_group("bert")
def test_interrupted_extraction_of_many_leaves_nothing(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def interrupt(submodel: Submodel, path: Path) -> tuple[Path, ...]:
        if written:
            raise KeyboardInterrupt
        written.append(submodel.call.id)
        return write_submodel(submodel, path)

    monkeypatch.setattr("modelexport.analysis.extraction.submodel_files.write_submodel", interrupt)
    with pytest.raises(KeyboardInterrupt):
        modelexport.extract_modules(exported("bert").path, "class:BertLayer", tmp_path / "layers")
    assert written == ["encoder.layer.0"]
    assert list((tmp_path / "layers").iterdir()) == []


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("moves", [1, 4])
def test_extraction_of_many_interrupted_while_files_move_leaves_the_folder_as_it_was(
    moves: int, exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modelexport.extract_modules(exported("bert").path, ["embeddings"], tmp_path)
    before = files_in(tmp_path)
    replace, moved = Path.replace, []

    def interrupt(file: Path, target: Path) -> Path:
        if Path(target).parent == tmp_path and len(moved) == moves:
            moved.append(target)
            raise KeyboardInterrupt
        moved.extend([target] if Path(target).parent == tmp_path else [])
        return replace(file, target)

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        modelexport.extract_modules(exported("bert").path, ["embeddings", "pooler"], tmp_path, overwrite=True)
    assert files_in(tmp_path) == before


@pytest.mark.xdist_group("bert")
def test_extraction_of_many_ends_at_a_number_of_nodes(
    exported: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelexport.analysis.extraction.submodel_files._MOST_NODES", 5)
    with pytest.raises(InputError, match="more than 5 nodes"):
        modelexport.extract_modules(exported("bert").path, ["embeddings", "pooler"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_enclosing_call_is_planned_once_for_all_calls_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Relu", ["x"], [f"y{n}"], name=f"/b{n}/Relu") for n in range(50)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [1])], [value("y0", 1, [1])])
    extractor = Extractor(helper.make_model(graph))
    plan, planned = ExtractionPlanner._plan, Counter[str]()

    def count(planner: ExtractionPlanner, call: CallRecord) -> ExtractionPlan:
        planned[call.id] += 1
        return plan(planner, call)

    monkeypatch.setattr(ExtractionPlanner, "_plan", count)
    for n in range(1, 50):
        with pytest.raises(ExtractionError, match="can be extracted is the root"):
            extractor.extract(f"b{n}")
    assert set(planned.values()) == {1}


@pytest.mark.xdist_group("bert")
def test_targets_can_be_listed_and_existing_files_stay(exported: Exporter, tmp_path: Path) -> None:
    found = modelexport.extract_modules(exported("bert").path, ["pooler", "embeddings", "pooler"], tmp_path)
    assert [entry.call for entry in found.submodels] == ["pooler", "embeddings"]
    assert Path(found.manifest) == tmp_path / "manifest.json"
    with pytest.raises(InputError, match="it exists"):
        modelexport.extract_modules(exported("bert").path, ["pooler"], tmp_path)
    modelexport.extract_modules(exported("bert").path, ["pooler"], tmp_path, overwrite=True)


@pytest.mark.parametrize(
    "arguments",
    [[], ["blk"], ["blk", "--select", "x", "-o", "a.onnx"], ["--select", "x"], ["--select", "x", "-o", "{folder}"]],
)
def test_usage_error_is_reported(tmp_path: Path, arguments: list[str]) -> None:
    words = [word.format(folder=tmp_path / "cut") for word in arguments]
    with pytest.raises(InputError):
        CliRunner().invoke(app, ["extract", str(tmp_path / "m.onnx"), *words], catch_exceptions=False)


def test_file_names_are_safe_and_unique() -> None:
    calls = ["", "a.b@1", "A.b@1", "con", "x/../y", "ü" * 300, "é" * 300, "a b", "a_b", "encoder.layer.0"]
    names = file_names(calls, "model")
    assert names[""] == "model.onnx"
    assert names["encoder.layer.0"] == "encoder.layer.0.onnx"
    assert len({name.lower() for name in names.values()}) == len(calls)
    for name in names.values():
        assert len(name) < 120
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
        assert not name.lower().startswith(("con.", "."))


# --- weights in other files --------------------------------------------------------------------------------------

_WIDE = 1024
_LAYERS = 2500  # of 4 MiB: 10 GB


def _large_model(folder: Path) -> Path:
    """A chain of layers whose weights lie in a sparse file of 10 GB; that of layer 7 is written."""
    path = folder / "large.onnx"
    nodes, weights = [], []
    size = _WIDE * _WIDE * 4
    for layer in range(_LAYERS):
        weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[_WIDE, _WIDE])
        weight.data_location = TensorProto.EXTERNAL
        entries = {"location": "large.data", "offset": str(layer * size), "length": str(size)}
        for key, value in entries.items():
            weight.external_data.add(key=key, value=value)
        weights.append(weight)
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"], name=f"n{layer}"))
    values = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [1, _WIDE]) for n in range(_LAYERS + 1)]
    graph = helper.make_graph(nodes, "large", values[:1], values[-1:], weights, value_info=values[1:-1])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with (folder / "large.data").open("wb") as file:
        file.truncate(_LAYERS * size)
        file.seek(7 * size)
        file.write(np.eye(_WIDE, dtype=np.float32).tobytes())
    model = ir.from_proto(proto)
    info = TensorInfo((1, _WIDE), "float32")
    calls = {
        CallId(f"layers.{n}"): ModuleCall(
            f"layers.{n}",
            0,
            ROOT_CALL,
            (BoundaryTensor("x", f"x{n}", info),),
            (BoundaryTensor("output", f"x{n + 1}", info),),
        )
        for n in range(_LAYERS)
    }
    names = ["", "layers", *(f"layers.{n}" for n in range(_LAYERS))]
    listed = nodes_with_ids(model)
    document = build_document(
        strategy="fx",
        exporter="by hand",
        graph_hash=graph_hash(model),
        view=TagView(),
        tree=ModuleTree({name: ModuleInfo(name, "Layer", "my.Layer") for name in names}),
        calls=CallTree(calls),
        nodes=[
            (identity, operation(node), recorded_by_exporter(CallId(f"layers.{place}")))
            for place, (identity, node) in enumerate(listed)
        ],
        graph_tensors=tensors_with_ids(model, listed),
    )
    write_stores(proto, document)
    path.write_bytes(proto.SerializeToString())
    sidecar_path(path).write_bytes(encode_document(document))
    return path


_MEASURE = """
import resource, sys
from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.extraction.submodel_files import write_submodel
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_submodel(Extractor(sys.argv[1]).extract("layers.7"), sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_module_is_extracted_from_ten_gigabytes_without_reading_them(tmp_path: Path) -> None:
    path, cut = _large_model(tmp_path), tmp_path / "cut.onnx"
    command = [sys.executable, "-c", _MEASURE, str(path), str(cut)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # The layer has 4 MiB; the rest is the graph of 2,500 nodes and the sidecar.
    assert int(done.stdout) < 200 * 1024
    assert cut.stat().st_size < 5 * 2**20
    weights = onnx.load(cut).graph.initializer
    assert len(weights) == 1
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weights[0]), np.eye(_WIDE, dtype=np.float32))


@pytest.mark.xdist_group("shared_block")
def test_weights_can_be_written_to_a_separate_file(exported: Exporter, tmp_path: Path) -> None:
    submodel = modelexport.Extractor(exported("shared_block").path).extract("blk@1")
    inline = write_submodel(submodel, tmp_path / "inline.onnx")
    apart = write_submodel(submodel, tmp_path / "apart.onnx", external_data=True)
    assert len(inline) == 2
    assert [path.suffix for path in apart] == [".onnx", ".json", ".data"]
    one, other = onnx.load(inline[0]), onnx.load(apart[0])
    assert sorted(w.name for w in one.graph.initializer) == sorted(w.name for w in other.graph.initializer)
    for weight in one.graph.initializer:
        same = next(w for w in other.graph.initializer if w.name == weight.name)
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), onnx.numpy_helper.to_array(same))
    onnx.checker.check_model(apart[0], full_check=True)


@pytest.mark.xdist_group("shared_block")
def test_refused_extraction_writes_nothing(exported: Exporter, tmp_path: Path) -> None:
    target = tmp_path / "x.onnx"
    with pytest.raises(ExtractionError):
        CliRunner().invoke(
            app, ["extract", str(exported("shared_block").path), "blx", "-o", str(target)], catch_exceptions=False
        )
    assert list(tmp_path.iterdir()) == []
