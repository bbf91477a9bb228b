"""The command line as a user and as a script meet it: files, output, exit codes, and what bad input gets."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.command import PROGRESS_LINE, Outcome
from tests.support.factories import STARTED_VARIABLE

from modelexport.cli.output import printable
from modelexport.cli.report import markdown_report
from modelexport.document import decode_document
from modelexport.errors import InputError
from modelexport.export import STEPS
from modelexport.result import AttemptReport, ExportResult, StepReport

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("modelexport")
FACTORIES = "tests.support.factories"
# Runs several commands, each as its console script does, and after each says whether torch has come with it.
WITHOUT_TORCH = """
import sys
from modelexport.cli.main import run
for number, command in enumerate(" ".join(sys.argv[1:]).split(" , ")):
    sys.argv = ["modelexport", *command.split()]
    try:
        run()
    except SystemExit as ended:
        print(f"{number} ended with {ended.code or 0}, torch imported: {'torch' in sys.modules}", file=sys.stderr)
"""
# A shell that starts the tests in the background has told its children to ignore Ctrl-C.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from modelexport.cli.main import run
run()
"""
# For a model that takes no inputs that could be made up for it.
NO_INPUTS = ("--no-optimize",)


def start(*arguments: str | Path, script: str | None = None, **environment: str) -> subprocess.Popen[str]:
    command = [str(COMMAND)] if script is None else [sys.executable, "-c", script]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment},
    )


def in_process(*arguments: str | Path, script: str | None = None, **environment: str) -> Outcome:
    """The command in a process of its own."""
    with start(*arguments, script=script, **environment) as process:
        stdout, stderr = process.communicate(timeout=120)
        return Outcome(process.returncode, stdout, stderr)


@pytest.fixture
def command(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """As everywhere, in the folder of the project."""
    monkeypatch.chdir(ROOT)
    return command


@dataclasses.dataclass(frozen=True)
class Exported:
    """What exporting the built-in model left."""

    folder: Path
    outcome: Outcome

    @property
    def onnx_path(self) -> Path:
        return self.folder / "bert.onnx"

    @property
    def sidecar_path(self) -> Path:
        return self.folder / "bert_hierarchy.json"

    def copy(self, folder: Path) -> Path:
        """The model and its sidecar elsewhere, to be spoiled."""
        shutil.copy(self.sidecar_path, folder)
        return Path(shutil.copy(self.onnx_path, folder))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("bert")
    extras = ("--report", folder / "report.md", "--fx-graph", folder / "graph.txt", "--format", "json")
    return Exported(folder, in_process("export", "builtin:bert-tiny", folder / "bert.onnx", *extras))


def files_in(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, hidden or not."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plain_onnx(path: Path) -> Path:
    """A valid model that this project has never seen."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    onnx.save_model(helper.make_model(graph), path)
    return path


# --- what needs no torch ---------------------------------------------------------------------------------------


def test_torch_is_not_imported_by_what_needs_no_model(bert: Exported, tmp_path: Path) -> None:
    commands = (
        "--help",
        "export --help",
        "schema",
        f"tree {bert.onnx_path}",
        f"analyze {bert.onnx_path}",
        f"select {bert.onnx_path} encoder",
        f"export builtin:bert-tiny {tmp_path}/missing/bert.onnx",
        f"export builtin:bert-tiny {bert.onnx_path}",
    )
    outcome = in_process(*" , ".join(commands).split(), script=WITHOUT_TORCH)
    *good, missing, missing_ended, existing, existing_ended = outcome.stderr.splitlines()
    assert outcome.code == 0
    assert good == [f"{number} ended with 0, torch imported: False" for number in range(6)]
    assert "BertModel" in outcome.stdout
    # A path that cannot be used is found before torch is loaded.
    assert missing_ended == "6 ended with 2, torch imported: False"
    assert existing_ended == "7 ended with 2, torch imported: False"
    assert missing.startswith("error: ")
    assert existing.startswith("error: ")


def test_help_shows_examples(command: Callable[..., Outcome]) -> None:
    for name in ("export", "tree", "schema", "analyze", "select", "verify"):
        assert f"modelexport {name} " in command(name, "--help").stdout.partition("Example")[2]


# --- export ----------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.integration
def test_export_of_the_builtin_model_writes_its_files_and_nothing_else(bert: Exported) -> None:
    assert bert.outcome.code == 0
    assert files_in(bert.folder).keys() == {"bert.onnx", "bert_hierarchy.json", "report.md", "graph.txt"}
    onnx.checker.check_model(onnx.load_model(bert.onnx_path), full_check=True)


@pytest.mark.integration
def test_json_result_is_all_of_stdout_and_tells_what_was_done(bert: Exported) -> None:
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
    assert result["attempts"][-1] == {
        "strategy": "fx",
        "exporter": "dynamo",
        "reason": result["attempts"][-1]["reason"],
        "error": None,
    }
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
    lines = [PROGRESS_LINE.fullmatch(line) for line in bert.outcome.stderr.splitlines()]
    assert all(lines), bert.outcome.stderr
    assert [(m[1], m[2]) for m in lines if m] == [(str(i), step) for i, step in enumerate(STEPS, 1)]


@pytest.mark.integration
def test_report_tells_modules_steps_and_the_nodes_that_are_not_exact(bert: Exported) -> None:
    report = (bert.folder / "report.md").read_text(encoding="utf-8")
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    assert report.startswith("# Export of builtin:bert-tiny\n")
    assert f"{len(document.nodes)} nodes, 100.0% with an owner" in report
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
    assert "| fx | " in sections["Strategies tried"]


def test_report_keeps_its_tables_whole_when_names_hold_markup(bert: Exported) -> None:
    document = decode_document(bert.sidecar_path.read_bytes(), "sidecar")
    result = ExportResult(
        bert.onnx_path,
        bert.sidecar_path,
        (),
        document,
        (AttemptReport("fx", "a | b\nc", "<script>"),),
        (StepReport("check", 0.0, 0),),
    )
    report = markdown_report("m:f", result)
    assert r"| fx | a \| b c | &lt;script> |" in report


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


def test_human_result_tells_files_and_what_to_do_next(command: Callable[..., Outcome], tmp_path: Path) -> None:
    target = tmp_path / "net.onnx"
    outcome = command("export", f"{FACTORIES}:net_with_inputs", target)
    assert outcome.code == 0
    assert "100% with an owner" in outcome.stdout
    assert [line for line in outcome.stdout.splitlines() if line.startswith("wrote ")] == [
        f"wrote {target}",
        f"wrote {tmp_path / 'net_hierarchy.json'}",
    ]
    assert outcome.stdout.splitlines()[-1] == f"next: modelexport tree {target}"
    assert outcome.stderr.count("\n") == len(STEPS)


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


# --- bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("no_such_package.models:make", "no_such_package"),
        (f"{FACTORIES}.deeper:make", f"{FACTORIES}.deeper"),
        (f"{FACTORIES}:no_such_factory", "no_such_factory"),
        (f"{FACTORIES}:Net.no_such_method", "no_such_method"),
        (f"{FACTORIES}:not_a_factory", "int"),
        (f"{FACTORIES}:raises", "RuntimeError: the weights are elsewhere"),
        (f"{FACTORIES}:needs_arguments", "size"),
        (f"{FACTORIES}:returns_text", "str"),
        ("neither_this_nor_that", "package.module:factory"),
        (":make", "package.module:factory"),
        ("builtin:gpt-17", "gpt-17"),
    ],
)
def test_model_reference_that_leads_to_no_model_is_one_line_that_names_it(
    command: Callable[..., Outcome], tmp_path: Path, model: str, named: str
) -> None:
    outcome = command("export", model, tmp_path / "net.onnx")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert model.removeprefix("builtin:") in outcome.error
    assert named in outcome.error
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize(
    ("output", "options", "named"),
    [
        ("missing/net.onnx", (), "missing"),
        ("net.txt", (), "net.txt"),
        ("file/net.onnx", (), "file/net.onnx"),
        ("/proc/net.onnx", (), "/proc/net.onnx"),
        ("net.onnx", ("--report", "missing/report.md"), "missing/report.md"),
        ("net.onnx", ("--report", "file/report.md"), "file/report.md"),
        ("net.onnx", ("--fx-graph", "missing/graph.txt"), "missing/graph.txt"),
        ("net.onnx", ("--strategy", "clairvoyance"), "clairvoyance"),
        ("net.onnx", ("--input-shape", "x=1xtwo"), "x=1xtwo"),
        ("net.onnx", ("--input-shape", "1x3x4x4"), "1x3x4x4"),
        ("net.onnx", ("--input-shape", "x=1x3:float5"), "float5"),
        ("net.onnx", ("--input-shape", "y=2x3x4x4"), "(given: y)"),
        ("net.onnx", ("--inputs", "file"), "file"),
        ("net.onnx", ("--inputs", "missing.npz"), "missing.npz"),
        ("net.onnx", ("--inputs", "single.npy"), "single.npy"),
        ("net.onnx", ("--inputs", "pickled.npz"), "pickled.npz"),
        ("net.onnx", ("--inputs", "good.npz", "--input-shape", "x=2x3x4x4"), "--inputs and --input-shape"),
        ("net.onnx", NO_INPUTS, "no example inputs could be made up for Unwilling"),
    ],
)
def test_argument_that_cannot_be_used_is_one_line_that_names_it(
    command: Callable[..., Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    options: tuple[str, ...],
    named: str,
) -> None:
    (tmp_path / "file").write_bytes(b"not a folder, and no archive")
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "good.npz", x=np.zeros((2, 3, 4, 4), np.float32))
    before = files_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    factory = "unwilling" if options is NO_INPUTS else "net_with_inputs"
    outcome = command("export", f"{FACTORIES}:{factory}", output, *options)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert named in outcome.error
    assert files_in(tmp_path) == before


def test_inputs_that_forward_fails_on_are_one_line_and_leave_an_existing_output_untouched(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    target = tmp_path / "net.onnx"
    target.write_bytes(b"what stood here before")
    outcome = command("export", f"{FACTORIES}:net", target, "--force", "--input-shape", "x=2x5x4x4")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "Net.forward fails on the example inputs" in outcome.error
    assert files_in(tmp_path) == {"net.onnx": b"what stood here before"}


def test_debug_shows_the_traceback_wherever_it_stands(command: Callable[..., Outcome], tmp_path: Path) -> None:
    missing = tmp_path / "none.onnx"
    outcome = in_process("tree", missing, "--debug")
    assert outcome.code != 0
    assert "Traceback (most recent call last)" in outcome.stderr
    assert "InputError: " in outcome.stderr.splitlines()[-1]
    with pytest.raises(InputError, match=re.escape(str(missing))):
        command("--debug", "tree", missing)


@pytest.mark.parametrize(
    "arguments", [("tree",), ("tree", "x.onnx", "--depth", "-1"), ("export", "m:f"), ("frobnicate",)]
)
def test_wrong_use_is_exit_code_2_with_nothing_on_stdout(
    command: Callable[..., Outcome], arguments: tuple[str, ...]
) -> None:
    outcome = command(*arguments)
    assert (outcome.code, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("error: ")
    assert "--help" in line


@pytest.mark.integration
def test_interrupt_exits_130_and_leaves_what_was_there(tmp_path: Path) -> None:
    folder, started = tmp_path / "out", tmp_path / "started"
    folder.mkdir()
    target = folder / "net.onnx"
    target.write_bytes(b"what stood here before")
    with start(
        *("export", f"{FACTORIES}:waiting", target, "--force", "--report", folder / "report.md"),
        script=INTERRUPTIBLE,
        **{STARTED_VARIABLE: str(started)},
    ) as process:
        deadline = time.monotonic() + 90
        while not started.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert started.exists(), process.communicate()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == ""
    assert "Traceback" not in stderr
    assert files_in(folder) == {"net.onnx": b"what stood here before"}
    assert list(folder.iterdir()) == [target]


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


def test_tied_parameter_counts_once_in_the_module_that_holds_both(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert command("export", f"{FACTORIES}:tied", tmp_path / "net.onnx").code == 0
    shown = json.loads(command("tree", tmp_path / "net.onnx", "--format", "json").stdout)
    assert shown["modules"][0]["parameters"] == 16


def test_file_without_sidecar_is_shown_from_its_tags(
    command: Callable[..., Outcome], bert: Exported, tmp_path: Path
) -> None:
    model = bert.copy(tmp_path)
    (tmp_path / "bert_hierarchy.json").unlink()
    outcome = command("tree", model)
    assert outcome.code == 0
    assert outcome.stderr == "note: there is no sidecar bert_hierarchy.json; shown from the tags in the file\n"
    assert "BertLayer.1" in outcome.stdout
    assert "BertLayer.1" not in command("tree", model, "--depth", "1").stdout
    shown = json.loads(command("tree", model, "--format", "json").stdout)
    assert shown["modules"] is None
    assert sum(shown["tags"].values()) == len(onnx.load_model(model).graph.node)


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
    assert "BertLayer.1" in outcome.stdout


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
def test_file_that_is_no_model_is_one_line_that_names_it(
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


def test_model_without_a_hierarchy_is_one_line_that_says_what_to_do(
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


def test_reader_that_has_seen_enough_is_no_error(bert: Exported) -> None:
    with start("tree", bert.onnx_path, "--format", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


# --- what is not yet so ----------------------------------------------------------------------------------------


def test_json_on_stdout_is_whole_when_the_factory_prints(command: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command("export", f"{FACTORIES}:talkative", tmp_path / "net.onnx", "--format", "json")
    assert json.loads(outcome.stdout)["summary"]["success"] is True


@pytest.mark.parametrize(("option", "name"), [("--report", "net.onnx"), ("--fx-graph", "net_hierarchy.json")])
def test_report_and_dump_cannot_take_the_place_of_the_files_of_the_export(
    command: Callable[..., Outcome], tmp_path: Path, option: str, name: str
) -> None:
    outcome = command("export", f"{FACTORIES}:net_with_inputs", tmp_path / "net.onnx", option, tmp_path / name)
    assert outcome.code == 2
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("shape", ["x=99999999999x99999999999", "x=2x3:qint8"])
def test_shape_that_cannot_be_made_is_one_line_that_names_it(
    command: Callable[..., Outcome], tmp_path: Path, shape: str
) -> None:
    outcome = command("export", f"{FACTORIES}:net", tmp_path / "net.onnx", "--input-shape", shape)
    assert outcome.code == 2
    assert shape in outcome.error
