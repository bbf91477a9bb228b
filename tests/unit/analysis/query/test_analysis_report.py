"""`analyze` and `select` on exported models: counts and lists in every format, and errors of bad input."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jsonschema
import onnx
import pytest
from onnx import helper
from tests.conftest import Exported, Exporter
from tests.support.command import Outcome

from modelexport.analysis.query.analysis_report import analysis_schema, analyze
from modelexport.analysis.query.node_selection import select
from modelexport.analysis.query.selector_eval import select_nodes
from modelexport.analysis.query.statistics import count
from modelexport.cli.pages import as_csv
from modelexport.display import printable
from modelexport.errors import FileFormatError, InputError, SelectorError
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.modules import contains

MODELS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("bert", "cnn", "shared_block", "cond")]


def paths_of(document: HierarchyDocument) -> dict[str, str]:
    return {call.id: call.path for call in document.calls}


def parameters_in(ours: Exported, path: str) -> int:
    """Counted on the model itself."""
    return sum(p.numel() for p in ours.example.model.get_submodule(path).parameters())


# --- what is counted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_modules_are_counted_as_the_model_and_the_document_have_them(exported: Exporter, name: str) -> None:
    ours = exported(name)
    report = analyze(ours.path)
    owners = [paths_of(ours.document)[node.module] for node in ours.document.nodes]
    assert [module.path for module in report.modules] == [module.path for module in ours.document.modules]
    for module in report.modules:
        inside = [node for node, path in zip(ours.document.nodes, owners, strict=True) if contains(module.path, path)]
        assert module.nodes == len(inside)
        assert module.own_nodes == owners.count(module.path)
        assert module.operations == Counter(node.op for node in inside)
        assert list(module.operations.values()) == sorted(module.operations.values(), reverse=True)
        assert module.kinds == Counter(node.kind for node in inside)
        assert module.lowest_confidence == min((node.confidence for node in inside), default=None)
        assert module.parameters == parameters_in(ours, module.path), module.path
        assert module.parameter_bytes == 4 * module.parameters
        assert module.depth == len([part for part in module.path.split(".") if part])


@pytest.mark.parametrize("name", MODELS)
def test_totals_are_those_of_the_file(exported: Exporter, name: str) -> None:
    ours = exported(name)
    report = analyze(ours.path)
    proto = onnx.load(ours.path)
    assert report.nodes == report.all_nodes == len(ours.document.nodes)
    assert (report.origin, report.missing, report.strategy) == ("sidecar", (), ours.document.strategy)
    assert report.coverage == 1.0
    assert report.kinds == ours.document.kinds
    assert report.operations == Counter(node.op for node in ours.document.nodes)
    assert report.opsets == {opset.domain: opset.version for opset in proto.opset_import}
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer]
    assert (report.weights.tensors, report.weights.bytes) == (len(arrays), sum(array.nbytes for array in arrays))
    assert report.tags.nodes == Counter(node.tag for node in ours.document.nodes)
    assert report.tags.distinct == len(report.tags.nodes)
    assert report.deepest == max(module.depth for module in report.modules)


@pytest.mark.xdist_group("bert")
def test_classes_count_everything_inside_once(exported: Exporter) -> None:
    ours = exported("bert")
    report = analyze(ours.path)
    by_class = {c.class_name: c for c in report.classes}
    paths = {m.path for m in ours.document.modules if m.class_name == "BertAttention"}
    inside = [n for n in ours.document.nodes if any(contains(p, paths_of(ours.document)[n.module]) for p in paths)]
    assert by_class["BertAttention"].nodes == len(inside)
    assert by_class["BertAttention"].modules == 2
    assert by_class["BertModel"].nodes == len(ours.document.nodes)
    assert by_class["BertAttention"].parameters == sum(parameters_in(ours, path) for path in paths)
    assert [c.nodes for c in report.classes] == sorted((c.nodes for c in report.classes), reverse=True)
    assert report.most_repeated[0].class_name == "Linear"
    assert report.most_repeated[0].amount == 13
    assert report.largest[0].amount == max(module.own_nodes for module in report.modules)
    assert report.heaviest[0].path == "embeddings.position_embeddings"


@pytest.mark.xdist_group("shared_block")
def test_repeated_calls_are_listed(exported: Exporter) -> None:
    report = analyze(exported("shared_block").path)
    assert {(m.path, m.amount) for m in report.most_called} == {("blk", 3), ("blk.lin", 3), ("blk.norm", 3)}
    assert report.tags.of_repeated_calls == len([tag for tag in report.tags.nodes if "@" in tag]) > 0


@pytest.mark.xdist_group("bert")
def test_selector_limits_the_counted_nodes_and_depth_limits_the_modules(exported: Exporter) -> None:
    ours = exported("bert")
    report = analyze(ours.path, selector="encoder.layer.0")
    picked = select_nodes(ours.document, "encoder.layer.0", contributors=False)
    assert report.nodes == len(picked) < report.all_nodes
    assert report.modules[0].path == ""
    assert report.modules[0].nodes == len(picked)
    assert report.parameters == parameters_in(ours, "encoder.layer.0")
    assert all(
        m.path == "" or contains(m.path, "encoder.layer.0") or contains("encoder.layer.0", m.path)
        for m in report.modules
    )
    single = analyze(ours.path, selector="op:MatMul and encoder.layer.1")
    assert set(single.operations) == {"MatMul"}
    shallow = analyze(ours.path, depth=1)
    assert {m.path for m in shallow.modules} == {"", "embeddings", "encoder", "pooler"}
    assert shallow.modules[0].nodes == len(ours.document.nodes)
    with pytest.raises(SelectorError, match="did you mean 'encoder'"):
        analyze(ours.path, selector="encodr")


@pytest.mark.parametrize("name", MODELS)
def test_resolution_details_are_every_node_that_is_not_exact(exported: Exporter, name: str) -> None:
    ours = exported(name)
    details = analyze(ours.path, resolution=True).resolution
    assert details is not None
    tags = {call.id: call.tag for call in ours.document.calls}
    others = [node for node in ours.document.nodes if node.kind != "exact"]
    assert [detail.node for detail in details] == [node.id for node in others]
    for detail, node in zip(details, others, strict=True):
        assert (detail.kind, detail.confidence, detail.reason) == (node.kind, node.confidence, node.reason)
        owner, *rest = detail.candidates
        assert (owner.call, owner.tag, owner.role) == (node.module, node.tag, "owner")
        assert [c.call for c in rest if c.role == "contributor"] == list(node.contributors)
        assert [c.call for c in rest if c.role == "context"] == list(node.context)
        assert all(candidate.tag == tags[candidate.call] for candidate in rest)


def test_tied_parameters_count_once_and_types_by_their_bits() -> None:
    from modelexport.hierarchy.document import ModuleRecord
    from modelexport.hierarchy.modules import TensorInfo

    def module(path: str, **parameters: str) -> ModuleRecord:
        infos = {name: TensorInfo((10,), dtype) for name, dtype in parameters.items()}
        return ModuleRecord(path, "M", "m.M", tag="/M", visible=True, parameters=infos)

    modules = (module("", a="float16", b="bool", c="int4", d="complex64", e="float8_e4m3fn", f="torch.float32"),)
    document = HierarchyDocument(1, None, "", "", "", None, modules, (), (), ())  # type: ignore[arg-type]
    (counted,), (of_class,) = count(document)
    assert (counted.parameters, counted.parameter_bytes) == (60, 20 + 10 + 5 + 80 + 10 + 40)
    assert of_class.parameter_bytes == counted.parameter_bytes


# --- forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_json_matches_its_schema(exported: Exporter, command: Callable[..., Outcome], name: str) -> None:
    path = exported(name).path
    for arguments in ((), ("--show-resolution-details",), ("--select", "**", "--depth", "1")):
        outcome = command("analyze", path, "--format", "json", *arguments)
        assert outcome.code == 0
        content = json.loads(outcome.stdout)
        published = json.loads(command("schema", "analyze").stdout)
        assert published == json.loads(json.dumps(analysis_schema()))
        jsonschema.validate(content, published)
        assert content["nodes"] == len(exported(name).document.nodes) or "--select" in arguments
        assert (content["resolution"] is not None) == ("--show-resolution-details" in arguments)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "nodes": "many"}, published)


@pytest.mark.xdist_group("cnn")
def test_summary_and_details_contain_the_counts(exported: Exporter, command: Callable[..., Outcome]) -> None:
    path = exported("cnn").path
    summary = command("analyze", path)
    assert summary.code == 0
    assert "nodes: 7 (5 exact, 2 fused), 100.0% with an owner" in summary.stdout
    assert "hierarchy from: sidecar" in summary.stdout
    assert "--show-resolution-details" in summary.stdout
    detailed = command("analyze", path, "--detailed", "--show-resolution-details").stdout
    rows = {line.split()[0]: line.split() for line in detailed.splitlines() if line.startswith("  features")}
    module = next(m for m in analyze(path).modules if m.path == "features.2")
    assert rows["features.2"][1:8] == [
        "ConvBlock", "2", "1", "0", str(module.nodes), f"{module.parameters:,}", f"{module.parameter_bytes:,}",
    ]  # fmt: skip
    assert "Not exact: 2 of 7 nodes" in detailed
    assert "contributor features.0.conv" in detailed
    assert "owner       features.0.norm" in detailed


@pytest.mark.xdist_group("cnn")
def test_csv_has_a_row_for_each_module_or_candidate(exported: Exporter, command: Callable[..., Outcome]) -> None:
    path = exported("cnn").path
    outcome = command("analyze", path, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout, newline="")))
    modules = analyze(path).modules
    assert [row["path"] for row in rows] == [module.path for module in modules]
    assert [int(row["parameter_bytes"]) for row in rows] == [module.parameter_bytes for module in modules]
    assert rows[0]["operations"].startswith("Conv 2, Relu 2")
    outcome = command("analyze", path, "--format", "csv", "--show-resolution-details")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout, newline="")))
    details = analyze(path, resolution=True).resolution or ()
    assert [(r["node"], r["role"], r["call"]) for r in rows] == [
        (d.node, c.role, c.call) for d in details for c in d.candidates
    ]


def test_csv_is_safe_to_open() -> None:
    cells = [
        "=cmd|' /C calc'!A0",
        "+1",
        "-1",
        "@SUM(1)",
        "\t=1",
        "\r=1",
        "\uff1d1",
        " =1",
        "a,b",
        'say "hi"',
        "line\nbreak",
        "",
    ]
    text = as_csv(("cell", "number"), [(cell, -1) for cell in cells])
    assert text.startswith("cell,number\r\n")
    read = [row[0] for row in csv.reader(io.StringIO(text, newline=""))][1:]
    assert read == [f"'{printable(cell)}" for cell in cells[:8]] + [printable(cell) for cell in cells[8:]]
    assert all(row[1] == "-1" for row in list(csv.reader(io.StringIO(text, newline="")))[1:])


@pytest.mark.xdist_group("cnn")
def test_existing_output_file_is_replaced_only_with_force(
    exported: Exporter, command: Callable[..., Outcome], tmp_path: Path
) -> None:
    path, target = exported("cnn").path, tmp_path / "report.csv"
    outcome = command("analyze", path, "--format", "csv", "-o", target)
    assert (outcome.code, outcome.stdout) == (0, "")
    assert "wrote" in outcome.stderr
    # As the command prints it: lines end as RFC 4180 has it, in the file too.
    assert target.read_bytes().decode() == command("analyze", path, "--format", "csv").stdout
    again = command("analyze", path, "--format", "csv", "-o", target)
    assert again.code == 2
    assert "it exists" in again.stderr
    assert command("analyze", path, "-o", target, "--force", "--format", "human").code == 0
    assert "hierarchy from" in target.read_text()


# --- other files ------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("bert")
def test_file_without_its_sidecar_is_analyzed_from_its_tags(
    exported: Exporter, command: Callable[..., Outcome], tmp_path: Path
) -> None:
    alone = tmp_path / "bert.onnx"
    shutil.copyfile(exported("bert").path, alone)
    report = analyze(alone)
    assert report.origin == "doc_string"
    assert report.tags == analyze(exported("bert").path).tags
    outcome = command("analyze", alone)
    assert "hierarchy from: doc_string" in outcome.stdout
    assert "note: there is no sidecar bert_hierarchy.json" in outcome.stdout


def test_file_without_any_hierarchy_is_refused(command: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    for name in ("analyze", "select"):
        outcome = command(name, path, *(["x"] if name == "select" else []))
        assert outcome.code == 2
        assert "has no hierarchy" in outcome.stderr
        assert "Traceback" not in outcome.stderr
    with pytest.raises(FileFormatError):
        analyze(path)


def hostile(tmp_path: Path) -> Path:
    """Names that are made to do something to a terminal, a page or a spreadsheet."""
    names = ["\x1b[31mred", "=cmd", "</script>", "a\nb"]
    nodes = []
    for position, name in enumerate(names):
        node = helper.make_node("Relu", [f"v{position}"], [f"v{position + 1}"], name=f"{name}{position}")
        for key, text in {"tag": f"/Net/{name}", "module": name, "kind": "exact"}.items():
            node.metadata_props.add(key=f"pkg.modelexport.{key}", value=text)
        nodes.append(node)
    path = tmp_path / "hostile.onnx"
    path.write_bytes(helper.make_model(helper.make_graph(nodes, "g", [], []), ir_version=10).SerializeToString())
    return path


def test_names_of_an_untrusted_file_are_escaped_for_terminals_and_spreadsheets(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    path = hostile(tmp_path)
    for arguments in (("analyze", path), ("analyze", path, "--detailed"), ("select", path, "**")):
        outcome = command(*arguments)
        assert outcome.code == 0
        assert "\x1b" not in outcome.stdout
        assert "�[31mred" in outcome.stdout
    rows = list(csv.DictReader(io.StringIO(command("analyze", path, "--format", "csv").stdout, newline="")))
    assert "'=cmd" in [row["path"] for row in rows]
    assert all(not row["path"].startswith("=") for row in rows)
    plain = command("analyze", path, "--format", "json").stdout
    assert "\x1b" not in plain
    assert "\x1b[31mred" in [module["path"] for module in json.loads(plain)["modules"]]


BAD: dict[str, tuple[list[str], str]] = {
    "syntax": (["select", "FILE", "(encoder"], "at character 1"),
    "nothing": (["select", "FILE", "class:Blok"], "did you mean 'Block'"),
    "filter": (["analyze", "FILE", "--select", "a b"], "at character 3"),
    "no file": (["analyze", "/none.onnx"], "is not a file"),
    "no such format": (["select", "FILE", "blk", "--format", "tpu"], "tpu"),
    "depth": (["analyze", "FILE", "--depth", "-1"], "--depth"),
}


@pytest.mark.xdist_group("shared_block")
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_error_line_and_exit_code_two(
    exported: Exporter, command: Callable[..., Outcome], what: str
) -> None:
    arguments, message = BAD[what]
    outcome = command(*(str(exported("shared_block").path) if a == "FILE" else a for a in arguments))
    assert (outcome.code, outcome.stdout) == (2, "")
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.xdist_group("shared_block")
def test_python_callers_get_the_same_errors(exported: Exporter) -> None:
    with pytest.raises(InputError, match="is not a file"):
        select("/none.onnx", "x")
    with pytest.raises(SelectorError, match="ends too early"):
        select(exported("shared_block").path, "(")
