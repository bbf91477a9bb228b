"""What a page shows equals the document and `analyze`: owner by owner, total by total."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from benchmarks.tagged_models import write_tagged_model
from tests.conftest import Exporter
from tests.support.page_reading import call_ids, data_of, overlay, pairs, texts

import modelexport
from modelexport.storage.recovery import find_hierarchy
from modelexport.viewing.page_data import page_schema

MODELS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("bert", "cnn", "cond")]
KINDS = ("exact", "fused", "merged", "folded", "inferred")


def written(path: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """The data in a written page."""
    modelexport.view(path, output=folder / "page.html", **options)
    return data_of((folder / "page.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODELS)
def test_every_node_has_the_owner_and_evidence_of_the_document(exported: Exporter, tmp_path: Path, name: str) -> None:
    ours = exported(name)
    data = written(ours.path, tmp_path)
    nodes, calls = data["nodes"], call_ids(data)
    assert len(nodes["id"]) == len(ours.document.nodes)
    for number, record in enumerate(ours.document.nodes):
        domain, op = texts(data, [nodes["domain"][number], nodes["op"][number]])
        shown = (
            data["strings"][nodes["id"][number]],
            f"{domain}::{op}" if domain else op,
            calls[nodes["call"][number]],
            KINDS[nodes["kind"][number]],
            nodes["confidence"][number],
            data["strings"][nodes["reason"][number]],
            [calls[call] for call in nodes["contributors"].get(str(number), [])],
            [calls[call] for call in nodes["context"].get(str(number), [])],
        )
        evidence = (record.kind, record.confidence, record.reason, [*record.contributors], [*record.context])
        assert shown == (record.id, record.op, record.module, *evidence)


@pytest.mark.parametrize("name", MODELS)
def test_modules_have_the_columns_of_analyze(exported: Exporter, tmp_path: Path, name: str) -> None:
    ours = exported(name)
    data, modules = written(ours.path, tmp_path), modelexport.analyze(ours.path).modules
    table = data["modules"]
    assert texts(data, table["path"]) == [module.path for module in modules]
    columns = ("calls", "own_nodes", "nodes", "own_parameters", "parameter_bytes", "lowest_confidence")
    for column in columns:
        assert table[column] == [getattr(module, column) for module in modules], column
    assert table["parameters_total"] == [module.parameters for module in modules]
    for column, names in (("class", "class_name"), ("qualified_class", "qualified_class"), ("tag", "tag")):
        assert texts(data, table[column]) == [getattr(module, names) for module in modules], column
    for number, module in enumerate(modules):
        shown = {data["strings"][op]: count for op, count in pairs(table["operations"][number])}
        assert shown == module.operations
        assert {KINDS[kind]: count for kind, count in pairs(table["kinds"][number])} == module.kinds


@pytest.mark.parametrize("name", MODELS)
def test_calls_have_the_boundaries_and_totals_of_the_document(exported: Exporter, tmp_path: Path, name: str) -> None:
    ours = exported(name)
    data = written(ours.path, tmp_path)
    calls, ids, tensors = data["calls"], call_ids(data), texts(data, data["tensors"]["name"])
    assert ids == [call.id for call in ours.document.calls]
    parents = [None if parent < 0 else ids[parent] for parent in calls["parent"]]
    assert parents == [call.parent for call in ours.document.calls]
    own = Counter(node.module for node in ours.document.nodes)
    assert calls["own_nodes"] == [own[call] for call in ids]
    assert calls["nodes"][0] == len(ours.document.nodes)
    for number, call in enumerate(ours.document.calls):
        inside = [n for n, parent in enumerate(calls["parent"]) if parent == number]
        assert calls["nodes"][number] == own[call.id] + sum(calls["nodes"][n] for n in inside)
        for ports, boundary in ((calls["inputs"], call.inputs), (calls["outputs"], call.outputs)):
            assert texts(data, [port[0] for port in ports[number]]) == [each.name for each in boundary]
            for port, each in zip(ports[number], boundary, strict=True):
                assert (each.tensor or "").endswith(tensors[port[1]] if port[1] >= 0 else "")
                assert (port[1] < 0) == (each.tensor is None)


@pytest.mark.parametrize("name", MODELS)
def test_tensors_have_the_types_of_the_graph(exported: Exporter, tmp_path: Path, name: str) -> None:
    ours = exported(name)
    data = written(ours.path, tmp_path)
    graph = onnx.load(ours.path).graph
    tensors, nodes = data["tensors"], data["nodes"]
    shapes = dict(zip(texts(data, tensors["name"]), texts(data, tensors["shape"]), strict=True))
    for value in (*graph.value_info, *graph.input, *graph.output):
        axes = (
            str(axis.dim_value) if axis.HasField("dim_value") else axis.dim_param
            for axis in value.type.tensor_type.shape.dim
        )
        assert shapes[value.name] == (" x ".join(axes) or "scalar")
    for number, outputs in enumerate(nodes["outputs"]):
        assert all(tensors["producer"][tensor] == number for tensor in outputs)
    weights = {tensors["name"][int(number)] for number in data["weights"]}
    assert {data["strings"][name] for name in weights} == {weight.name for weight in graph.initializer}


@pytest.mark.parametrize("name", MODELS)
def test_data_follows_its_schema(exported: Exporter, tmp_path: Path, name: str) -> None:
    jsonschema.validate(written(exported(name).path, tmp_path), page_schema())


@pytest.mark.xdist_group("cond")
def test_subgraphs_are_graphs_of_their_node(exported: Exporter, tmp_path: Path) -> None:
    data = written(exported("cond").path, tmp_path)
    owner = texts(data, data["nodes"]["op"]).index("If")
    inner = [graph for graph in data["graphs"] if graph["owner"] == owner]
    assert [graph["attribute"] for graph in inner] == ["then_branch", "else_branch"]
    numbers = [data["graphs"].index(graph) for graph in inner]
    assert all(number in data["nodes"]["graph"] for number in numbers)
    for graph in inner:
        assert [data["nodes"]["graph"][data["tensors"]["producer"][t]] for t in graph["outputs"]] != [0]


@pytest.mark.xdist_group("bert")
def test_private_page_names_no_source_file(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    shown, hidden = written(ours.path, tmp_path), written(ours.path, tmp_path, private=True, overwrite=True)
    assert any("modeling_bert.py:" in text for text in texts(shown, shown["nodes"]["source"]))
    assert set(hidden["nodes"]["source"]) == {0}
    assert hidden["about"]["private"]
    assert ".py" not in json.dumps(hidden)


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("damage", ["missing", "stale"])
def test_page_without_a_valid_sidecar_has_recovered_owners_and_says_so(
    exported: Exporter, tmp_path: Path, damage: str
) -> None:
    ours = exported("bert")
    path = tmp_path / "model.onnx"
    path.write_bytes(ours.path.read_bytes())
    if damage == "stale":
        other = exported("bert", optimize=False).path
        path.with_name("model_hierarchy.json").write_bytes(other.with_name("bert_hierarchy.json").read_bytes())
    data = written(path, tmp_path)
    expected = "describes another graph" if damage == "stale" else "there is no sidecar"
    assert expected in data["notes"][0]
    assert data["about"]["origin"] == "doc_string"
    found = find_hierarchy(modelexport.read_model(path)).document
    calls = call_ids(data)
    assert [calls[call] for call in data["nodes"]["call"]] == [node.module for node in found.nodes]
    assert Counter(calls[c] for c in data["nodes"]["call"]) == Counter(node.module for node in ours.document.nodes)


@pytest.mark.xdist_group("bert")
def test_reports_of_the_same_graph_are_laid_over(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    profile = modelexport.profile(ours.path, ours.feeds, warmup=1, runs=4, threads=1)
    verified = modelexport.verify_modules(ours.path, ours.example.model, ours.example.inputs)
    (tmp_path / "profile.json").write_text(json.dumps(profile.as_dict()), encoding="utf-8")
    (tmp_path / "verify.json").write_text(json.dumps(verified.as_dict()), encoding="utf-8")
    other = exported("bert", optimize=False).path
    reports = {"profile": tmp_path / "profile.json", "verification": tmp_path / "verify.json", "compare": other}
    data = written(ours.path, tmp_path, **reports)
    ids = call_ids(data)
    time = overlay(data, "time")
    assert time["calls"] == pytest.approx([profile[call].own.mean for call in ids], rel=1e-5)
    assert time["totals"][0] == pytest.approx(sum(call.own.mean for call in profile.calls), rel=1e-3)
    nodes = texts(data, data["nodes"]["id"])
    kernels = {kernel.node: kernel for kernel in profile.kernels if kernel.node in nodes}
    assert {name for name, value in zip(nodes, time["nodes"], strict=True) if value is not None} == set(kernels)
    assert len(kernels) > len(nodes) / 3
    verdicts = overlay(data, "verdict")
    shown = [None if v is None else verdicts["categories"][v] for v in verdicts["calls"]]
    assert shown == [verified[call].verdict.value.replace("_", " ") for call in ids]
    errors = [None if (found := verified[call].introduced) is None else found.excess for call in ids]
    assert overlay(data, "error")["calls"] == [None if e is None else pytest.approx(e, rel=1e-5) for e in errors]
    compared = modelexport.compare_models(other, ours.path)
    changes = overlay(data, "changes")
    by_node = dict(zip(texts(data, data["nodes"]["id"]), changes["nodes"], strict=True))
    added = {change.after.id for change in compared.changes if change.kind == "added" and change.after}
    assert {node for node, kind in by_node.items() if changes["categories"][kind] == "added"} == added
    assert changes["categories"][changes["totals"][0]] == "changed"


@pytest.mark.xdist_group("bert")
def test_report_of_another_graph_is_refused_with_both_names(exported: Exporter, tmp_path: Path) -> None:
    ours, other = exported("bert"), exported("cnn")
    profile = modelexport.profile(other.path, other.feeds, warmup=0, runs=2, threads=1)
    (tmp_path / "profile.json").write_text(json.dumps(profile.as_dict()), encoding="utf-8")
    with pytest.raises(modelexport.InputError, match=r"a profile of cnn\.onnx .*, not of bert\.onnx"):
        modelexport.view(ours.path, profile=tmp_path / "profile.json")
    verified = modelexport.verify_modules(other.path, other.example.model, other.example.inputs)
    (tmp_path / "verify.json").write_text(json.dumps(verified.as_dict()), encoding="utf-8")
    with pytest.raises(modelexport.InputError, match=r"a verification of cnn\.onnx .*, not of bert\.onnx"):
        modelexport.view(ours.path, verification=tmp_path / "verify.json")
    content = verified.as_dict() | {"graph_hash": ""}
    (tmp_path / "old.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(modelexport.InputError, match="does not say which graph"):
        modelexport.view(ours.path, verification=tmp_path / "old.json")


def test_page_of_a_large_model_is_small(tmp_path: Path) -> None:
    nodes = 4_000
    page = modelexport.view(write_tagged_model(tmp_path / "stack.onnx", nodes)).html
    assert len(page.encode()) < 3_000_000 + 200 * nodes
    # The page itself has a fixed size; what the data takes must not depend on how large that is.
    assert len(json.dumps(data_of(page), separators=(",", ":"))) < 250 * nodes
