"""Each command that reads files, on each test model: what it prints, against the file read with plain onnx."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import types
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
import typer
from tests.conftest import Exported, Exporter
from tests.support import zoo
from tests.support.renaming import rename_file
from tests.support.schemas import closed
from tests.support.subgraphs import walk_nodes
from typer.testing import CliRunner

from modelexport.cli.main import app
from modelexport.cli.schema import SchemaName
from modelexport.display import counted

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

# So many of a model's parts are run again.
_MOST_SUBMODELS = 2

each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in zoo.names()]
)


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
    assert (done.exit_code, done.return_value or 0) == (0, 0), done.output
    return done.stdout


def checked(command: str, text: str) -> Any:
    """JSON that a command printed, found to be as its published schema says, with no field that it does not name."""
    content = json.loads(text)
    validator(command).validate(content)
    return content


@cache
def validator(command: str) -> jsonschema.Draft202012Validator:
    schema = closed(json.loads(printed("schema", command)))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def run(*words: str) -> str:
    """What a command prints that may find something."""
    done = CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
    assert (done.exit_code or done.return_value or 0) in (0, 1), done.output
    return done.stdout


def operators(ours: Exported) -> Counter[str]:
    nodes = [node for _, node in walk_nodes(onnx.load(ours.path, load_external_data=False))]
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes)


@each_model
def test_analyze_counts_what_is_in_the_file_and_the_model(exported: Exporter, name: str) -> None:
    ours = exported(name)
    found = operators(ours)
    root = checked("analyze", printed("analyze", str(ours.path), "--format", "json"))["modules"][0]
    assert (root["path"], root["nodes"], root["operations"]) == ("", found.total(), dict(found))
    model = ours.example.model
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
    report = checked("validate", printed("validate", str(ours.path), "--format", "json"))
    assert (report["valid"], report["errors"], report["findings"], report["nodes"]) == (True, 0, [], total)
    tree = checked("tree", printed("tree", str(ours.path), "--format", "json"))
    assert (tree["coverage"], tree["modules"][0]["nodes"]) == (1.0, total)
    assert type(ours.example.model).__name__ in printed("tree", str(ours.path))


@each_model
def test_export_prints_what_is_in_the_file(exported: Exporter, name: str) -> None:
    ours = exported(name)
    whole = ours.result.as_dict()
    checked("tag", json.dumps(whole))
    report = checked("export", json.dumps(whole))
    nodes = operators(ours).total()
    assert (report["summary"]["node_count"], report["summary"]["kinds"]) == (nodes, dict(ours.result.kinds))
    assert [Path(file).is_file() for file in report["files"]] == [True] * len(report["files"])


@each_model
def test_retag_by_value_gives_a_file_with_other_names_its_owners_back(
    exported: Exporter, name: str, tmp_path: Path
) -> None:
    ours = exported(name)
    renamed, written = tmp_path / "renamed.onnx", tmp_path / "tagged.onnx"
    rename_file(ours.path, renamed)
    words = ["retag", str(renamed), "--from", str(ours.path), "--by-value", "-o", str(written)]
    total = operators(ours).total()
    report = checked("retag", printed(*words, "--format", "json"))
    assert (report["nodes"], report["coverage"], report["by_value"]) == (total, 1.0, True)
    assert report["exact"] + report["projected"] + report["inferred"] == total
    assert owners_in_order(written) == owners_in_order(ours.path)


@each_model
def test_retag_of_the_unchanged_file_reports_that_the_whole_hierarchy_is_kept(
    exported: Exporter, name: str, tmp_path: Path
) -> None:
    ours = exported(name)
    shown = printed("retag", str(ours.path), "--from", str(ours.path), "-o", str(tmp_path / "tagged.onnx"))
    kept = len({name for node in onnx.load(ours.path).graph.node for name in node.output if name})
    assert f"{operators(ours).total()} nodes: " in shown
    assert f"{kept} of {kept} tensors were kept" in shown
    assert owners_in_order(tmp_path / "tagged.onnx") == owners_in_order(ours.path)


def owners_in_order(path: Path) -> list[str]:
    return [json.loads(node.doc_string)["module"] for _, node in walk_nodes(onnx.load(path, load_external_data=False))]


@each_model
def test_extract_writes_models_that_compute_what_the_whole_computes(
    exported: Exporter, name: str, tmp_path: Path
) -> None:
    ours = exported(name)
    report = checked(
        "extract",
        run("extract", str(ours.path), "--select", "*", "-o", str(tmp_path / "all"), "--format", "json"),
    )
    calls = {entry["call"] for entry in (*report["submodels"], *report["refused"])}
    everything = {call.id for call in ours.document.calls}
    assert {call for call in everything if "." not in call} <= calls <= everything
    for entry in report["submodels"][:_MOST_SUBMODELS]:
        assert_computes_the_same(ours, tmp_path / "all" / entry["file"], entry)
        path = tmp_path / "one.onnx"
        words = ["extract", str(ours.path), entry["call"], "-o", str(path), "--force"]
        one = checked("extract", printed(*words, "--format", "json"))
        assert one == {key: value for key, value in entry.items() if key != "file"} | {
            "files": one["files"],
            "schema_version": 1,
        }
        assert one["files"][0] == str(path)
        assert f"{entry['call']}: {counted(entry['node_count'], 'node')}" in printed(*words)


def assert_computes_the_same(ours: Exported, path: Path, entry: dict[str, Any]) -> None:
    whole = onnx.load(ours.path)
    held = values_of(whole, ours.feeds, [port["tensor"] for port in (*entry["inputs"], *entry["outputs"])])
    part = onnx.load(path)
    assert len(list(walk_nodes(part))) == entry["node_count"]
    feeds = {port["name"]: held[port["tensor"]] for port in entry["inputs"]}
    found = values_of(part, feeds, [port["name"] for port in entry["outputs"]])
    for port in entry["outputs"]:
        assert found[port["name"]].dtype == held[port["tensor"]].dtype
        np.testing.assert_allclose(found[port["name"]], held[port["tensor"]], rtol=1e-4, atol=1e-6)


def values_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """What onnxruntime gives for tensors of a graph, whether it makes them or has them."""
    held = {**feeds, **{tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}}
    made = [name for name in names if name not in held]
    del model.graph.output[:], model.graph.value_info[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}
    return {**held, **dict(zip(made, session.run(made, {n: a for n, a in feeds.items() if n in taken}), strict=True))}


@each_model
def test_verify_judges_every_call_and_finds_nothing_wrong(
    exported: Exporter, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = exported(name)
    factories = types.ModuleType("zoo_factories")
    monkeypatch.setattr(factories, name, lambda: (ours.example.model, ours.example.inputs), raising=False)
    monkeypatch.setitem(sys.modules, factories.__name__, factories)
    words = ["verify", str(ours.path), "--model", f"zoo_factories:{name}"]
    report = checked("verify", printed(*words, "--format", "json"))
    assert {row["call"] for row in report["calls"]} == {call.id for call in ours.document.calls}
    assert len(report["calls"]) == len(ours.document.calls) == sum(report["counts"].values())
    assert report["passed"] is True
    assert report["counts"].keys() <= {"within", "not_comparable"}
    for row in report["calls"]:
        assert row["verdict"] != "within" or row["introduced"]["excess"] <= 1


def test_every_command_that_prints_json_has_a_schema() -> None:
    printing = {
        command
        for command in typer.main.get_command(app).commands
        if re.search(r"--format\s+<[^>]*\bjson\b", printed(command, "--help"))
    }
    assert printing >= {"export", "retag", "select", "verify"}
    assert printing <= {value.value for value in SchemaName}


def test_inspect_prints_what_its_schema_says() -> None:
    report = checked("inspect", printed("inspect", "builtin:bert-tiny", "--format", "json"))
    assert report["model"] == "builtin:bert-tiny"
    assert [candidate["strategy"] for candidate in report["candidates"]]
