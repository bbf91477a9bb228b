"""The command line as people and scripts meet it: help, and `modelexport export`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.command import PROGRESS_LINE, Outcome
from tests.support.command_process import FACTORIES, WITHOUT_TORCH, Exported, files_in, in_process

from modelexport.cli.export_summary import markdown_report, summary_lines
from modelexport.exporting.export_run import STEPS
from modelexport.exporting.result import ExportResult, StepReport
from modelexport.hierarchy.document_codec import decode_document
from modelexport.strategies.attempts import AttemptReport

# --- what needs no torch ---------------------------------------------------------------------------------------


def test_commands_without_a_model_do_not_import_torch(bert: Exported, tmp_path: Path) -> None:
    commands = (
        "--help",
        "export --help",
        "schema",
        f"tree {bert.onnx_path}",
        f"analyze {bert.onnx_path}",
        f"select {bert.onnx_path} encoder",
        f"view {bert.onnx_path} --format dot",
        f"export builtin:bert-tiny {bert.onnx_path}/bert.onnx",
        f"export builtin:bert-tiny {bert.onnx_path}",
    )
    outcome = in_process(*" , ".join(commands).split(), script=WITHOUT_TORCH)
    *good, missing, missing_ended, existing, existing_ended = outcome.stderr.splitlines()
    assert outcome.code == 0
    assert good == [f"{number} ended with 0, torch imported: False" for number in range(7)]
    assert "BertModel" in outcome.stdout
    # A path that cannot be used is found before torch is loaded.
    assert missing_ended == "7 ended with 2, torch imported: False"
    assert existing_ended == "8 ended with 2, torch imported: False"
    assert missing.startswith("error: ")
    assert existing.startswith("error: ")


def test_help_shows_examples(command: Callable[..., Outcome]) -> None:
    for name in ("export", "tree", "schema", "analyze", "select", "verify", "view"):
        assert f"modelexport {name} " in command(name, "--help").stdout.partition("Example")[2]


# --- export ----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.integration
def test_export_of_the_builtin_model_writes_its_files_and_nothing_else(bert: Exported) -> None:
    assert bert.outcome.code == 0
    assert files_in(bert.folder).keys() == {"bert.onnx", "bert_hierarchy.json", "report.md", "graph.txt"}
    onnx.checker.check_model(onnx.load_model(bert.onnx_path), full_check=True)


@pytest.mark.integration
def test_json_result_is_the_only_stdout_and_describes_the_export(bert: Exported) -> None:
    result = json.loads(bert.outcome.stdout)
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    nodes = onnx.load_model(bert.onnx_path).graph.node
    summary = result["summary"]
    assert summary["success"] is True
    assert summary["coverage"] == 1.0
    assert summary["node_count"] == len(nodes) == sum(summary["kinds"].values())
    assert summary["kinds"] == Counter(node.kind for node in document.nodes)
    assert (summary["module_count"], summary["call_count"]) == (len(document.modules), len(document.calls))
    assert summary["strategy"] == "fx"
    (attempt,) = result["attempts"]
    assert attempt.pop("reason")
    assert attempt.pop("seconds") > 0.01
    expected = {"strategy": "fx", "exporter": "dynamo", "variant": "", "error": None, "tried": True, "output": ""}
    assert attempt == expected
    assert [step["step"] for step in result["steps"]] == list(STEPS)
    assert all(step["seconds"] >= 0 and step["peak_memory_bytes"] > 10e6 for step in result["steps"])
    assert result["steps"][1]["seconds"] > 0.01
    assert summary["seconds"] == pytest.approx(sum(step["seconds"] for step in result["steps"]))
    assert {Path(file) for file in result["files"]} == {
        bert.onnx_path,
        bert.sidecar_path,
        bert.folder / "graph.txt",
    }
    assert all(Path(file).is_file() for file in result["files"])
    assert (Path(result["onnx_path"]), Path(result["sidecar_path"])) == (bert.onnx_path, bert.sidecar_path)


@pytest.mark.integration
def test_progress_is_one_line_a_step_on_stderr(bert: Exported) -> None:
    lines = [PROGRESS_LINE.fullmatch(line) for line in bert.outcome.stderr.splitlines()[:-1]]
    assert all(lines), bert.outcome.stderr
    assert [(m[1], m[2]) for m in lines if m] == [(str(i), step) for i, step in enumerate(STEPS, 1)]


@pytest.mark.integration
def test_report_lists_modules_steps_and_nodes_that_are_not_exact(bert: Exported) -> None:
    report = re.sub(r"\\(.)", r"\1", (bert.folder / "report.md").read_text(encoding="utf-8"))
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    assert report.startswith("# Export of builtin:bert-tiny\n")
    assert f"{len(document.nodes)} nodes, 100% with an owner" in report
    sections = {text.partition("\n")[0]: text for text in report.split("\n## ")[1:]}
    for kind, count in document.kinds.items():
        assert f"| {kind} | {count} |" in sections["Attributions"]
    inexact = [node for node in document.nodes if node.kind != "exact"]
    assert inexact, "the model has a node that two layers share"
    for node in inexact:
        assert f"| {node.id} | {node.op} | {node.module} | {node.kind} |" in sections["Nodes that are not exact"]
        assert node.reason in sections["Nodes that are not exact"]
    modules = {line.split(" | ")[0].removeprefix("| ") for line in sections["Modules"].splitlines()[4:]}
    assert {"(root)", "encoder.layer.1.attention.self.query", "pooler"} <= modules
    assert all(f"| {step} | " in sections["Steps"] for step in STEPS)
    assert "| fx | " in sections["Attempts"]


def test_summary_names_the_attempts_before_the_one_that_succeeded(bert: Exported) -> None:
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    attempts = (
        AttemptReport("fx", "dynamo", "best", "a long error", seconds=2.34),
        AttemptReport("htp", "torchscript", "fallback", "another", "unwatched", 0.5),
        AttemptReport("htp", "torchscript", "fallback", None, "as a function of tensors", 0.5),
    )
    result = ExportResult(bert.onnx_path, bert.sidecar_path, (), document, attempts, ())
    assert "tried before: fx (dynamo), 2.3 s; htp (torchscript, unwatched), 0.5 s" in summary_lines(result, "m")
    alone = ExportResult(bert.onnx_path, bert.sidecar_path, (), document, attempts[-1:], ())
    assert not [line for line in summary_lines(alone, "m") if line.startswith("tried before")]


def test_report_keeps_its_tables_whole_when_names_contain_markup(bert: Exported) -> None:
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    result = ExportResult(
        bert.onnx_path,
        bert.sidecar_path,
        (),
        document,
        (AttemptReport("fx", "a | b", "c\n<script>"),),
        (StepReport("check", 0.0, 0),),
    )
    report = markdown_report("m:f", result)
    assert r"| fx | a \| b |  | 0.0 | c &lt;script&gt; |" in report


@pytest.mark.integration
def test_fx_graph_names_the_owner_of_each_traced_operation(bert: Exported) -> None:
    lines = (bert.folder / "graph.txt").read_text(encoding="utf-8").splitlines()
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    calls = {call.id or "(root)" for call in document.calls}
    owners = [re.match(r"  \[(.*?)\] %", line) for line in lines if "= call_function[" in line]
    assert lines[0] == "graph (main):"
    assert len(owners) > 50
    assert all(owner is not None and owner[1] in calls for owner in owners)
    linears = [line for line in lines if "aten.linear" in line and "pooler" in line]
    assert linears
    assert all(line.startswith("  [pooler.dense] ") for line in linears)


def test_human_result_lists_files_and_next_steps(command: Callable[..., Outcome], tmp_path: Path) -> None:
    target = tmp_path / "net.onnx"
    outcome = command("export", f"{FACTORIES}:net_with_inputs", target)
    assert outcome.code == 0
    assert "100% with an owner" in outcome.stdout
    assert [line for line in outcome.stdout.splitlines() if line.startswith("wrote ")] == [
        f"wrote {target}",
        f"wrote {tmp_path / 'net_hierarchy.json'}",
    ]
    assert outcome.stdout.splitlines()[-2:] == [
        f"next: modelexport tree {target}",
        f"      modelexport verify {target} --model {FACTORIES}:net_with_inputs",
    ]
    assert outcome.stderr.splitlines()[len(STEPS) :] == [
        "fixed sizes: x 2 x 3 x 4 x 4; --dynamic auto frees those that can change"
    ]


def test_outputs_have_the_names_of_the_result_or_those_of_torch(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    def outputs(*options: str) -> list[str]:
        target = tmp_path / "new" / "folder" / "net.onnx"
        assert command("export", f"{FACTORIES}:net_with_inputs", target, "--force", *options).code == 0
        return [value.name for value in onnx.load_model(target).graph.output]

    assert outputs() == ["output"]
    assert outputs("--torch-names") == ["layer_norm"]


def test_output_folder_of_a_failed_command_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    outcome = in_process("export", f"{FACTORIES}:unwilling", kept / "new" / "folder" / "net.onnx")
    assert outcome.code == 2
    assert list(tmp_path.rglob("*")) == [kept]


def test_torch_nn_exceptions_change_tags_and_not_modules(command: Callable[..., Outcome], tmp_path: Path) -> None:
    def owners(name: str, *options: str) -> dict[str, tuple[str, str]]:
        target = tmp_path / f"{name}.onnx"
        assert command("export", f"{FACTORIES}:net_with_inputs", target, *options).code == 0
        document = decode_document((tmp_path / f"{name}_hierarchy.json").read_bytes(), name)
        stored = [json.loads(node.doc_string) for node in onnx.load_model(target).graph.node]
        assert [(s["module"], s["hierarchy_path"]) for s in stored] == [(n.module, n.tag) for n in document.nodes]
        return {node.id: (node.module, node.tag) for node in document.nodes}

    def tags_by_module(found: dict[str, tuple[str, str]]) -> dict[str, str]:
        return dict(found.values())

    named = owners("named", "--torch-nn-exceptions", "Linear, Conv2d")
    everything = owners("all", "--torch-nn-exceptions", "all")
    nothing = owners("none", "--torch-nn-exceptions", "none")
    modules = [{node: module for node, (module, _) in found.items()} for found in (named, everything, nothing)]
    assert modules[0] == modules[1] == modules[2]
    assert tags_by_module(named) == {
        "": "/Net",
        "conv": "/Net/Conv2d",
        "stage.lin": "/Net/Stage/Linear",
        "stage.norm": "/Net/Stage",
    }
    assert tags_by_module(everything) == {
        "": "/Net",
        "conv": "/Net/Conv2d",
        "stage.lin": "/Net/Stage/Linear",
        "stage.norm": "/Net/Stage/LayerNorm",
    }
    assert tags_by_module(nothing) == {
        "": "/Net",
        "conv": "/Net",
        "stage.lin": "/Net/Stage",
        "stage.norm": "/Net/Stage",
    }


@pytest.mark.parametrize("source", ["shape", "file"])
def test_inputs_can_be_given_by_shape_or_file(command: Callable[..., Outcome], tmp_path: Path, source: str) -> None:
    np.savez(tmp_path / "inputs.npz", x=np.zeros((2, 3, 4, 4), np.float32))
    given = {"shape": ("--input-shape", "x=2x3x4x4"), "file": ("--inputs", tmp_path / "inputs.npz")}[source]
    assert command("export", f"{FACTORIES}:net", tmp_path / "net.onnx", *given).code == 0
    (value,) = onnx.load_model(tmp_path / "net.onnx").graph.input
    assert (value.name, [d.dim_value for d in value.type.tensor_type.shape.dim]) == ("x", [2, 3, 4, 4])


def test_existing_output_is_kept_without_force_and_replaced_with_it(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    target = tmp_path / "net.onnx"
    target.write_bytes(b"what stood here before")
    before = files_in(tmp_path)
    refused = command("export", f"{FACTORIES}:net_with_inputs", target)
    assert refused.code == 2
    assert refused.stdout == ""
    assert str(target) in refused.error
    assert "--force" in refused.error
    assert files_in(tmp_path) == before
    assert command("export", f"{FACTORIES}:net_with_inputs", target, "--force").code == 0
    assert files_in(tmp_path).keys() == {"net.onnx", "net_hierarchy.json"}
    onnx.checker.check_model(onnx.load_model(target))


def test_existing_sidecar_is_not_replaced_without_force(command: Callable[..., Outcome], tmp_path: Path) -> None:
    sidecar = tmp_path / "net_hierarchy.json"
    sidecar.write_bytes(b"of another model")
    refused = command("export", f"{FACTORIES}:net_with_inputs", tmp_path / "net.onnx")
    assert refused.code == 2
    assert str(sidecar) in refused.error
    assert files_in(tmp_path) == {sidecar.name: b"of another model"}
