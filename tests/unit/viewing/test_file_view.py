"""`view`: what it returns, writes and refuses."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.page_reading import data_of
from tests.support.scoped_models import layer, saved, stack

import modelexport


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(stack([layer(0), layer(1)]), tmp_path / "net.onnx")


def test_view_is_saved_in_the_format_of_its_extension(path: Path, tmp_path: Path) -> None:
    shown = modelexport.view(path)
    assert shown.path is None
    assert data_of(shown.save(tmp_path / "page.html").read_text(encoding="utf-8"))["file"] == "net.onnx"
    assert shown.path == tmp_path / "page.html"
    assert shown.save(tmp_path / "level.svg", level="layers.0").read_text(encoding="utf-8").startswith("<svg ")
    assert shown.save(tmp_path / "level.dot").read_text(encoding="utf-8").startswith("digraph ")
    assert '"graphs"' in shown.save(tmp_path / "graph.json").read_text(encoding="utf-8")
    with pytest.raises(modelexport.InputError, match=r"page\.pdf: unknown file extension"):
        shown.save(tmp_path / "page.pdf")


def test_existing_file_is_replaced_only_where_that_is_asked_for(path: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine", encoding="utf-8")
    with pytest.raises(modelexport.InputError, match="it exists"):
        modelexport.view(path, output=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "mine"
    modelexport.view(path, output=tmp_path / "page.html", overwrite=True)
    assert "net.onnx" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_path_that_cannot_be_written_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(modelexport.InputError, match="no folder"):
        modelexport.view(tmp_path / "missing.onnx", output=tmp_path / "missing" / "page.html")


def test_repr_is_short(path: Path) -> None:
    shown = modelexport.view(path)
    assert repr(shown).startswith("View(file='net.onnx', nodes=4, calls=3")
    assert len(repr(shown)) < 300


def test_page_that_was_not_saved_is_opened_from_a_temporary_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    shown = modelexport.view(path)
    assert shown.open()
    assert shown.path is not None
    assert opened == [shown.path.as_uri()]
    assert shown.path.name == "net.html"


def test_machine_without_a_browser_is_no_error(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", fail)
    assert not modelexport.view(path, output=tmp_path / "page.html").open()


def test_file_without_any_hierarchy_is_one_clear_error(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save_model(helper.make_model(graph, ir_version=10), tmp_path / "plain.onnx")
    with pytest.raises(modelexport.FileFormatError, match=r"plain\.onnx has no hierarchy .* modelexport tag"):
        modelexport.view(tmp_path / "plain.onnx")


def test_unknown_level_names_similar_calls(path: Path) -> None:
    with pytest.raises(modelexport.InputError, match=r"has no module call 'layer\.0': did you mean 'layers\.0'"):
        modelexport.view(path).svg("layer.0")


def test_report_that_is_none_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    for name in ("profile", "verification"):
        with pytest.raises(modelexport.FileFormatError, match=r"other\.json was not written by modelexport"):
            modelexport.view(path, **{name: tmp_path / "other.json"})
        with pytest.raises(modelexport.InputError, match=r"missing\.json cannot be read"):
            modelexport.view(path, **{name: tmp_path / "missing.json"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"output": 3}, "output is the path of the page, not int"),
        ({"profile": {}}, "by the path of its JSON file, not as dict"),
        ({"verification": 3}, "by the path of its JSON file, not as int"),
        ({"axes": 3}, "axes are a dict of sizes by name"),
    ],
)
def test_argument_of_another_type_is_an_input_error(path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(modelexport.InputError, match=words):
        modelexport.view(path, **arguments)
