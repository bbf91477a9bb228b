"""`tag_file` and `modelexport tag`: a finished file gets its hierarchy and stays what it was."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.conftest import Exporter
from tests.support import zoo
from tests.support.plain import export_plainly
from typer.testing import CliRunner

import modelexport
from modelexport.cli.main import app
from modelexport.exporting.file_tagging import tag_file

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cnn")]


@pytest.fixture(scope="module")
def plainly_exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What plain torch writes: a model and its weights."""
    folder = tmp_path_factory.mktemp("plain")
    example = zoo.build("cnn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = str(folder / "plain.onnx")
        torch.onnx.export(example.model, (example.inputs,), path, dynamo=True, verbose=False, external_data=True)
    return content(folder)


@pytest.fixture
def plain(tmp_path: Path, plainly_exported: dict[str, bytes]) -> Path:
    """A file as plain torch writes it, weights beside it."""
    assert set(plainly_exported) == {"plain.onnx", "plain.onnx.data"}
    for name, data in plainly_exported.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path / "plain.onnx"


def read(path: Path, *, weights: bool = False) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=weights)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def relocate(proto: onnx.ModelProto, location: str) -> onnx.ModelProto:
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    return proto


def test_tagged_file_is_the_given_one_but_for_tags(plain: Path, tmp_path: Path) -> None:
    example, before = zoo.build("cnn"), content(tmp_path)
    result = tag_file(plain, example.model, example.inputs, tmp_path / "tagged.onnx")
    assert modelexport.strip_hierarchy(read(result.onnx_path)) == read(plain)
    assert content(tmp_path).items() >= before.items()
    assert set(content(tmp_path)) - set(before) == {"tagged.onnx", "tagged_hierarchy.json"}
    onnx.checker.check_model(result.onnx_path, full_check=True)
    assert modelexport.load(result.onnx_path).document == result.document
    assert result.document.exporter.startswith("pytorch")
    assert {"features.0.norm", "head"} <= {node.module for node in result.document.nodes}
    assert result["summary"]["success"]


@pytest.mark.xdist_group("shared_block")
def test_tags_are_those_of_an_export_of_ours(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("shared_block")
    export_plainly(ours.example.model, ours.args, ours.kwargs, tmp_path / "plain.onnx")
    result = tag_file(tmp_path / "plain.onnx", ours.example.model, ours.example.inputs, overwrite=True)
    assert [(n.id, n.module, n.tag) for n in result.document.nodes] == [
        (n.id, n.module, n.tag) for n in ours.document.nodes
    ]
    assert result.document.modules == ours.document.modules
    assert result.document.graph_hash == ours.document.graph_hash


def test_weights_come_along_to_another_folder(plain: Path, tmp_path: Path) -> None:
    example = zoo.build("cnn")
    (tmp_path / "other").mkdir()
    result = tag_file(plain, example.model, example.inputs, tmp_path / "other" / "model.onnx", overwrite=True)
    assert {path.name for path in result.files} == {"model.onnx", "model_hierarchy.json", "plain.onnx.data"}
    assert modelexport.strip_hierarchy(read(result.onnx_path, weights=True)) == read(plain, weights=True)
    again = tag_file(plain, example.model, example.inputs, tmp_path / "other" / "model.onnx", overwrite=True)
    assert again.document == result.document


def test_file_is_replaced_where_no_output_is_named(plain: Path) -> None:
    example, before = zoo.build("cnn"), read(plain, weights=True)
    first = tag_file(plain, example.model, example.inputs, overwrite=True)
    assert first.onnx_path == plain
    second = tag_file(plain, example.model, example.inputs, torch_nn_exceptions="all", overwrite=True)
    assert modelexport.strip_hierarchy(read(plain, weights=True)) == before
    assert len({node.tag for node in second.document.nodes}) > len({node.tag for node in first.document.nodes})


def test_own_export_keeps_its_weights_when_tagged_in_place(tmp_path: Path) -> None:
    example = zoo.build("cnn")
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modelexport.export_model(example.model, example.inputs, path, external_data=True)
    before, files = modelexport.strip_hierarchy(read(path, weights=True)), set(content(tmp_path))
    tag_file(path, example.model, example.inputs, overwrite=True)
    assert modelexport.strip_hierarchy(read(path, weights=True)) == before
    assert set(content(tmp_path)) == files
    assert modelexport.load(path).document is not None


def test_existing_files_are_refused_unless_they_may_be_replaced(plain: Path, tmp_path: Path) -> None:
    example, before = zoo.build("cnn"), content(tmp_path)
    with pytest.raises(modelexport.InputError, match="it exists"):
        tag_file(plain, example.model, example.inputs, overwrite=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plain.onnx.data").write_bytes(b"of another model")
    with pytest.raises(modelexport.InputError, match=r"plain\.onnx\.data: it exists"):
        tag_file(plain, example.model, example.inputs, tmp_path / "other" / "model.onnx", overwrite=False)
    assert content(tmp_path) == before
    assert content(tmp_path / "other") == {"plain.onnx.data": b"of another model"}


def test_weights_outside_the_folder_are_not_read(plain: Path, tmp_path: Path) -> None:
    example = zoo.build("cnn")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "model.onnx").write_bytes(relocate(read(plain), "../plain.onnx.data").SerializeToString())
    with pytest.raises(modelexport.FileFormatError, match="outside its folder"):
        tag_file(inner / "model.onnx", example.model, example.inputs, overwrite=True)
    (inner / "model.onnx").write_bytes(relocate(read(plain), "nowhere").SerializeToString())
    with pytest.raises(modelexport.FileFormatError, match="'nowhere', which does not exist"):
        tag_file(inner / "model.onnx", example.model, example.inputs, overwrite=True)
    assert set(content(inner)) == {"model.onnx"}


def test_weights_in_a_folder_of_their_own_stay_there(plain: Path, tmp_path: Path) -> None:
    example = zoo.build("cnn")
    (tmp_path / "weights").mkdir()
    (tmp_path / "plain.onnx.data").rename(tmp_path / "weights" / "data")
    proto = relocate(read(plain), "weights/data")
    plain.write_bytes(proto.SerializeToString())
    tag_file(plain, example.model, example.inputs, tmp_path / "tagged.onnx", overwrite=True)
    assert modelexport.strip_hierarchy(read(tmp_path / "tagged.onnx")) == proto
    (tmp_path / "other").mkdir()
    with pytest.raises(modelexport.InputError, match="in a subfolder"):
        tag_file(plain, example.model, example.inputs, tmp_path / "other" / "model.onnx", overwrite=True)


def test_model_with_other_weights_is_refused_and_nothing_written(plain: Path, tmp_path: Path) -> None:
    before = content(tmp_path)
    torch.manual_seed(1)
    with pytest.raises(modelexport.InputError, match=r"does not compute what Cnn .* 0 of 7 distinctive tensors"):
        tag_file(plain, zoo.Cnn(), zoo.build("cnn").inputs, overwrite=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.randn(2, 3, 16, 16), torch.zeros(1)), r"do not fit Cnn\.forward"),
        ("text", "example inputs are a str"),
        (torch.randn(2, 4, 16, 16), r"Cnn\.forward fails on the example inputs"),
        (torch.randn(1, 3, 16, 16), "onnxruntime cannot run the graph"),
    ],
    ids=["too many", "no tensor", "wrong for the model", "wrong for the file"],
)
def test_inputs_that_do_not_fit_are_named(plain: Path, tmp_path: Path, inputs: object, message: str) -> None:
    before = content(tmp_path)
    with pytest.raises(modelexport.ModelExportError, match=message):
        tag_file(plain, zoo.build("cnn").model, inputs, overwrite=True)
    assert content(tmp_path) == before


def test_argument_that_is_not_a_model_is_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(modelexport.InputError, match=r"not a torch\.nn\.Module"):
        tag_file(plain, zoo.Cnn, torch.zeros(1), overwrite=True)  # type: ignore[arg-type]
    (tmp_path / "text.onnx").write_text("no protobuf")
    with pytest.raises(modelexport.FileFormatError):
        tag_file(tmp_path / "text.onnx", zoo.build("cnn").model, zoo.build("cnn").inputs, overwrite=True)


def test_model_and_torch_are_left_as_they_were(plain: Path, tmp_path: Path) -> None:
    example = zoo.build("cnn")
    model = example.model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    numbers = torch.get_rng_state()
    tag_file(plain, model, example.inputs, tmp_path / "tagged.onnx")
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch.backends.mha.get_fastpath_enabled()


# --- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def factory(monkeypatch: Any) -> str:
    """A MODEL argument for the example that `plain` was made of."""
    module: Any = type(sys)("factory_for_tag")
    example = zoo.build("cnn")
    module.make = lambda: (example.model, example.inputs)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:make"


def test_command_tags_a_file(plain: Path, tmp_path: Path, factory: str) -> None:
    output = tmp_path / "tagged.onnx"
    ran = CliRunner().invoke(app, ["tag", str(plain), "--model", factory, "-o", str(output), "--format", "json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["onnx_path"] == str(output)
    assert modelexport.load(output).document is not None
    assert "7 of 7 distinctive tensors match by value" in ran.stderr


def test_command_refuses_to_replace_the_file_without_force(plain: Path, tmp_path: Path, factory: str) -> None:
    before = content(tmp_path)
    ran = CliRunner().invoke(app, ["tag", str(plain), "--model", factory])
    assert isinstance(ran.exception, modelexport.InputError)
    assert content(tmp_path) == before
    ran = CliRunner().invoke(app, ["tag", str(plain), "--model", factory, "--force"])
    assert ran.exit_code == 0, ran.output
    assert "next: modelexport tree" in ran.stdout


def test_command_names_a_file_that_is_missing(tmp_path: Path, factory: str) -> None:
    ran = CliRunner().invoke(app, ["tag", str(tmp_path / "no.onnx"), "--model", factory, "--force"])
    assert isinstance(ran.exception, modelexport.InputError)
    assert "no.onnx is not a file" in str(ran.exception)
