"""Each command that reads files, on each test model: what it prints, against the file read with plain onnx."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from typing import Any

import jsonschema
import onnx
import pytest
from tests.conftest import Exported, Exporter
from tests.support import zoo
from tests.support.bodies import walk_nodes
from typer.testing import CliRunner

from modelexport.cli.main import app

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in zoo.names()]
)


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
    assert (done.exit_code, done.return_value or 0) == (0, 0), done.output
    return done.stdout


def checked(command: str, text: str) -> Any:
    """JSON that a command printed, found to be as its published schema says."""
    content = json.loads(text)
    jsonschema.validate(content, json.loads(printed("schema", command)))
    return content


def operators(ours: Exported) -> Counter[str]:
    nodes = [node for _, node in walk_nodes(onnx.load(ours.path, load_external_data=False))]
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes)


@each_model
def test_analyze_counts_what_is_in_the_file_and_the_model(exported: Exporter, name: str) -> None:
    ours = exported(name)
    found = operators(ours)
    root = checked("analyze", printed("analyze", str(ours.path), "--format", "json"))["modules"][0]
    assert (root["path"], root["nodes"], root["operations"]) == ("", found.total(), dict(found))
    model = ours.specimen.model
    assert root["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert root["class_name"] == type(model).__name__
    rows = list(csv.DictReader(io.StringIO(printed("analyze", str(ours.path), "--format", "csv"))))
    assert {row["path"] for row in rows} <= {path for path, _ in model.named_modules(remove_duplicate=False)}
    assert int(next(row["nodes"] for row in rows if row["path"] == "")) == found.total()
    shown = printed("analyze", str(ours.path))
    assert type(model).__name__ in shown
    assert f"{found.total():,}" in shown


@each_model
def test_select_of_everything_names_every_node(exported: Exporter, name: str) -> None:
    ours = exported(name)
    nodes = dict(walk_nodes(onnx.load(ours.path, load_external_data=False)))
    listed = checked("select", printed("select", str(ours.path), "**", "--format", "json"))["nodes"]
    assert {node["id"]: node["name"] for node in listed} == {identity: node.name for identity, node in nodes.items()}


@each_model
def test_compare_finds_a_file_the_same_as_itself(exported: Exporter, name: str) -> None:
    path = str(exported(name).path)
    report = checked("compare", printed("compare", path, path, "--format", "json"))
    assert (report["same"], report["differences"], report["changes"]) == (True, [], [])
    assert "same" in printed("compare", path, path)


@each_model
def test_validate_and_tree_agree_with_the_file(exported: Exporter, name: str) -> None:
    ours = exported(name)
    total = operators(ours).total()
    report = json.loads(printed("validate", str(ours.path), "--format", "json"))
    assert (report["valid"], report["errors"], report["findings"], report["nodes"]) == (True, 0, [], total)
    tree = json.loads(printed("tree", str(ours.path), "--format", "json"))
    assert (tree["coverage"], tree["modules"][0]["nodes"]) == (1.0, total)
    assert type(ours.specimen.model).__name__ in printed("tree", str(ours.path))
