"""`modelexport view`: what it writes, and what it refuses before any work is done."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import Outcome
from tests.support.page_reading import data_of

Command = Callable[..., Outcome]
MODEL = Path(__file__).parents[2] / "data" / "profiles" / "cnn.onnx"


def test_page_is_written_and_opened_only_on_a_terminal(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    done = command("view", MODEL, "-o", tmp_path / "page.html")
    assert (done.code, opened) == (0, [])
    assert "page.html" in done.stderr
    assert data_of((tmp_path / "page.html").read_text(encoding="utf-8"))["file"] == "cnn.onnx"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert command("view", MODEL, "-o", tmp_path / "page.html", "--force", "--no-open").code == 0
    assert opened == []
    assert command("view", MODEL, "-o", tmp_path / "page.html", "--force").code == 0
    assert opened == [(tmp_path / "page.html").as_uri()]


def test_page_without_a_path_is_in_a_temporary_folder_and_its_path_is_printed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = command("view", MODEL)
    assert done.code == 0
    page = Path(done.stdout.strip())
    assert page.name == "cnn.html"
    assert page.parent.parent == tmp_path
    assert data_of(page.read_text(encoding="utf-8"))["file"] == "cnn.onnx"


def test_format_follows_the_file_extension(command: Command, tmp_path: Path) -> None:
    assert command("view", MODEL, "-o", tmp_path / "level.svg").code == 0
    assert (tmp_path / "level.svg").read_text(encoding="utf-8").startswith("<svg ")
    assert command("view", MODEL, "--format", "dot", "--level", "features").stdout.startswith("digraph ")
    assert command("view", MODEL, "-o", tmp_path / "graph.json").code == 0
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8"))["label"] == "cnn.onnx"
    assert json.loads((tmp_path / "graph_flops.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "page.pdf"], "unknown file extension"),
        (["-o", "page.html", "--level", "features"], "--level is for --format svg"),
        (["--format", "svg", "--level", "feature"], "has no module call 'feature': did you mean 'features'"),
        (["--format", "dot", "--axis", "batch"], "--axis 'batch' cannot be read"),
        (["--format", "dot", "--profile", "missing.json"], "missing.json cannot be read"),
    ],
)
def test_wrong_options_are_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    placed = [str(tmp_path / option) if option.startswith("page.") else option for option in options]
    done = command("view", MODEL, *placed)
    assert done.code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_existing_files_are_kept_without_force(command: Command, tmp_path: Path) -> None:
    for name in ("page.html", "graph_flops.json"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    for name in ("page.html", "graph.json"):
        done = command("view", MODEL, "-o", tmp_path / name)
        assert done.code == 2
        assert "it exists" in done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"page.html", "graph_flops.json"}
    assert command("view", MODEL, "-o", tmp_path / "graph.json", "--force").code == 0


def test_notes_of_the_page_are_shown(command: Command, tmp_path: Path) -> None:
    (tmp_path / "copy.onnx").write_bytes(MODEL.read_bytes())
    done = command("view", tmp_path / "copy.onnx", "--format", "dot", "-o", tmp_path / "level.dot")
    assert "note: there is no sidecar copy_hierarchy.json" in done.stderr
