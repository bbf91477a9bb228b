"""`modelexport tree` and `schema`: output for people and programs, escaped for the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper
from tests.support.command import Outcome
from tests.support.command_process import FACTORIES, Exported, in_process, plain_onnx, start

import modelexport
from modelexport.display import printable
from modelexport.hierarchy.document_codec import decode_document

# --- tree and schema -------------------------------------------------------------------------------------------


def test_tree_shows_modules_with_nodes_and_parameters(command: Callable[..., Outcome], bert: Exported) -> None:
    outcome = command("tree", bert.onnx_path)
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    lines = outcome.stdout.splitlines()
    assert (outcome.code, outcome.stderr) == (0, "")
    assert lines[0].startswith(f"BertModel  {len(document.nodes)} nodes")
    assert len(lines) == len({m["path"] for m in json.loads(command_json(command, bert))["modules"]})
    # The weight and the bias of a Linear from 128 to 128.
    assert sum("query: Linear  2 nodes  16,512 parameters" in line for line in lines) == 2
    assert not any("Dropout" in line for line in lines)


def command_json(command: Callable[..., Outcome], bert: Exported, *options: str) -> str:
    outcome = command("tree", bert.onnx_path, "--format", "json", *options)
    assert (outcome.code, outcome.stderr) == (0, "")
    return outcome.stdout


def test_tree_as_json_counts_every_node_once(command: Callable[..., Outcome], bert: Exported) -> None:
    shown = json.loads(command_json(command, bert))
    count = len(onnx.load_model(bert.onnx_path).graph.node)
    root = shown["modules"][0]
    assert (shown["file"], shown["strategy"], shown["coverage"]) == (str(bert.onnx_path), "fx", 1.0)
    assert root["path"] == ""
    assert count == root["nodes"] == sum(m["own_nodes"] for m in shown["modules"])
    assert count == sum(shown["tags"].values()) == sum(shown["kinds"].values())


def test_depth_limits_the_tree(command: Callable[..., Outcome], bert: Exported) -> None:
    def paths(*options: str) -> set[str]:
        return {module["path"] for module in json.loads(command_json(command, bert, *options))["modules"]}

    assert paths("--depth", "0") == {""}
    assert paths("--depth", "1") == {"", "embeddings", "encoder", "pooler"}
    assert paths("--depth", "2") == {path for path in paths() if path.count(".") <= 1}
    assert len(command("tree", bert.onnx_path, "--depth", "1").stdout.splitlines()) == 4


def test_all_shows_the_modules_without_nodes_too(command: Callable[..., Outcome], bert: Exported) -> None:
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    shown = json.loads(command_json(command, bert, "--all"))["modules"]
    assert [module["path"] for module in shown] == [module.path for module in document.modules]
    assert {m["class_name"] for m in shown if not m["nodes"]} == {"Dropout"}
    assert "dropout: Dropout  0 nodes" in command("tree", bert.onnx_path, "--all").stdout


def test_tied_parameter_counts_once_in_the_common_parent(command: Callable[..., Outcome], tmp_path: Path) -> None:
    assert command("export", f"{FACTORIES}:tied", tmp_path / "net.onnx").code == 0
    shown = json.loads(command("tree", tmp_path / "net.onnx", "--format", "json").stdout)
    assert shown["modules"][0]["parameters"] == 16


def test_tree_is_the_same_without_the_sidecar_and_says_what_that_lacks(
    command: Callable[..., Outcome], bert: Exported, tmp_path: Path
) -> None:
    model = bert.copy(tmp_path)
    before = {m["path"]: m["nodes"] for m in json.loads(command_json(command, bert))["modules"] if m["nodes"]}
    (tmp_path / "bert_hierarchy.json").unlink()
    outcome = command("tree", model)
    assert outcome.code == 0
    assert outcome.stderr.startswith("note: there is no sidecar bert_hierarchy.json; only a sidecar has the inputs")
    assert "1: BertLayer" in outcome.stdout
    shown = json.loads(command("tree", model, "--format", "json").stdout)
    assert shown["origin"] == "doc_string"
    assert {m["path"]: m["nodes"] for m in shown["modules"] if m["nodes"]} == before
    assert sum(shown["tags"].values()) == len(onnx.load_model(model).graph.node)


def test_tree_of_a_file_of_torch_is_shown(command: Callable[..., Outcome], bert: Exported, tmp_path: Path) -> None:
    plain = modelexport.strip_hierarchy(onnx.load_model(bert.onnx_path))
    onnx.save_model(plain, tmp_path / "plain.onnx")
    outcome = command("tree", tmp_path / "plain.onnx")
    assert outcome.code == 0
    assert "1: BertLayer" in outcome.stdout


def test_sidecar_of_a_renamed_file_is_found_by_the_hash_of_its_graph(
    command: Callable[..., Outcome], bert: Exported, tmp_path: Path
) -> None:
    renamed = bert.copy(tmp_path).rename(tmp_path / "renamed.onnx")
    (tmp_path / "another_hierarchy.json").write_text('{"graph_hash": "00"}')
    outcome = command("tree", renamed)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout == command("tree", bert.onnx_path).stdout


def test_parameters_of_the_modules_shown_add_up_although_one_is_fused(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU()).eval()
    modelexport.export_model(model, torch.ones(1, 1, 8, 8), tmp_path / "net.onnx")
    modules = json.loads(command("tree", tmp_path / "net.onnx", "--format", "json").stdout)["modules"]
    root, *children = modules
    assert root["parameters"] == sum(child["parameters"] for child in children)
    assert "0: Conv2d  0 nodes (fused)  20 parameters" in command("tree", tmp_path / "net.onnx").stdout


def test_stale_sidecar_is_said_to_be_one_and_the_tags_are_shown(
    command: Callable[..., Outcome], bert: Exported, tmp_path: Path
) -> None:
    model = bert.copy(tmp_path)
    changed = onnx.load_model(model)
    changed.graph.node.append(helper.make_node("Identity", [changed.graph.output[0].name], ["one_more"]))
    onnx.save_model(changed, model)
    outcome = command("tree", model)
    assert outcome.code == 0
    assert "describes another graph than bert.onnx" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert "1: BertLayer" in outcome.stdout


def test_damaged_sidecar_is_one_line_that_names_it(
    command: Callable[..., Outcome], bert: Exported, tmp_path: Path
) -> None:
    model, sidecar = bert.copy(tmp_path), tmp_path / "bert_hierarchy.json"
    whole = sidecar.read_bytes()
    newer = json.loads(whole) | {"schema_version": 999}
    for damaged in (b"", b"\x00\xff", whole[: len(whole) // 2], b"[" * 100_000, json.dumps(newer).encode()):
        sidecar.write_bytes(damaged)
        outcome = command("tree", model)
        assert (outcome.code, outcome.stdout) == (2, "")
        assert outcome.stderr.count("\n") == 1
        assert str(sidecar) in outcome.error


def test_sidecar_whose_parts_do_not_fit_together_is_one_line_that_names_it(bert: Exported, tmp_path: Path) -> None:
    model, sidecar = bert.copy(tmp_path), tmp_path / "bert_hierarchy.json"
    content = json.loads(sidecar.read_bytes())
    sidecar.write_text(json.dumps(content | {"modules": content["modules"][1:]}))
    outcome = in_process("tree", model)
    assert outcome.code == 2
    assert str(sidecar) in outcome.error


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "is not a file"), (b"", "is empty"), (b"\x00garbage" * 9, "cannot be read"), (b"\x08\x0a", "no graph")],
)
def test_file_that_is_not_a_model_is_one_line_that_names_it(
    command: Callable[..., Outcome], tmp_path: Path, content: bytes | None, named: str
) -> None:
    file = tmp_path / "model.onnx"
    if content is not None:
        file.write_bytes(content)
    outcome = command("tree", file)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert str(file) in outcome.error
    assert named in outcome.error


def test_model_without_a_hierarchy_is_a_one_line_error_with_the_next_step(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    file = plain_onnx(tmp_path / "plain.onnx")
    outcome = command("tree", file)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert str(file) in outcome.error
    assert "modelexport export" in outcome.error


def test_schema_is_json_on_stdout(command: Callable[..., Outcome]) -> None:
    outcome = command("schema")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert json.loads(outcome.stdout)["$schema"].startswith("https://json-schema.org/")


# --- terminals -------------------------------------------------------------------------------------------------


def test_stdout_that_is_not_utf8_does_not_crash_a_command(bert: Exported, tmp_path: Path) -> None:
    shown = in_process("tree", bert.onnx_path, PYTHONIOENCODING="ascii")
    assert (shown.code, shown.stderr) == (0, "")
    assert shown.stdout.isascii()
    assert "pooler: BertPooler" in shown.stdout
    missing = in_process("tree", tmp_path / "größe.onnx", PYTHONIOENCODING="ascii")
    assert (missing.code, missing.stdout) == (2, "")
    assert missing.stderr == f"{missing.error}\n"
    assert missing.error.isascii()


def test_name_that_stdout_cannot_encode_does_not_crash_a_command(bert: Exported, tmp_path: Path) -> None:
    model = with_class_name(bert, tmp_path, "Größe")
    shown = in_process("tree", model, PYTHONIOENCODING="ascii")
    assert (shown.code, shown.stderr) == (0, "")
    assert "pooler" in shown.stdout


def test_escape_sequences_in_a_sidecar_do_not_reach_the_terminal(
    command: Callable[..., Outcome], bert: Exported, tmp_path: Path
) -> None:
    hostile = "\x1b]0;owned\x07\x9b31m[bold]Bert\r\n"
    outcome = command("tree", with_class_name(bert, tmp_path, hostile), "--depth", "1")
    assert outcome.code == 0
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", outcome.stdout) == []
    assert "[bold]Bert" in outcome.stdout
    assert len(outcome.stdout.splitlines()) == 4
    assert printable(hostile) in outcome.stdout


def with_class_name(bert: Exported, folder: Path, class_name: str) -> Path:
    """A copy of the built-in model in which the pooler's class has another name."""
    model, sidecar = bert.copy(folder), folder / "bert_hierarchy.json"
    content: dict[str, Any] = json.loads(sidecar.read_bytes())
    for module in content["modules"]:
        if module["path"] == "pooler":
            module["class_name"] = class_name
    sidecar.write_text(json.dumps(content))
    return model


def test_pipe_that_is_closed_early_is_not_an_error(bert: Exported) -> None:
    with start("tree", bert.onnx_path, "--format", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
