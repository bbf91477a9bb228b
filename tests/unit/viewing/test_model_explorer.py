"""The format of Model Explorer: valid by the schema of its classes, with modules as groups and values of nodes.

`benchmarks/load_in_model_explorer.py` loads such files in Model Explorer itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.conftest import Exporter

import modelexport

SCHEMA = Path(__file__).parents[2] / "data" / "model_explorer" / "graph_collection.schema.json"
MODELS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("bert", "cnn", "cond")]


def collection(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(modelexport.view(path).model_explorer())
    return content


@pytest.mark.parametrize("name", MODELS)
def test_graphs_follow_the_schema_and_every_edge_has_its_node(exported: Exporter, name: str) -> None:
    content = collection(exported(name).path)
    jsonschema.validate(content, json.loads(SCHEMA.read_text(encoding="utf-8")))
    graphs = {graph["id"] for graph in content["graphs"]}
    assert len(graphs) == len(content["graphs"])
    for graph in content["graphs"]:
        ids = [node["id"] for node in graph["nodes"]]
        assert len(set(ids)) == len(ids)
        edges = [edge["sourceNodeId"] for node in graph["nodes"] for edge in node.get("incomingEdges", [])]
        assert edges
        assert set(edges) <= set(ids)
        assert all("namespace" in node for node in graph["nodes"]), "its web application never ends without one"
        assert {inner for node in graph["nodes"] for inner in node.get("subgraphIds", [])} <= graphs


@pytest.mark.xdist_group("bert")
def test_groups_are_the_calls_around_a_node(exported: Exporter) -> None:
    ours = exported("bert")
    (graph,) = collection(ours.path)["graphs"]
    spaces = {node["id"]: node["namespace"] for node in graph["nodes"]}
    for record in ours.document.nodes:
        if record.module == "encoder.layer.0.attention.self":
            around = "encoder (BertEncoder)/layer.0 (BertLayer)/attention (BertAttention)/self (BertSelfAttention)"
            assert spaces[record.id] == around
        elif not record.module:
            assert spaces[record.id] == ""
    groups = {space for space in spaces.values() if space}
    assert groups <= set(graph["groupNodeAttributes"])
    attributes = graph["groupNodeAttributes"]["encoder (BertEncoder)"]
    assert attributes["nodes"] == f"{sum(n.module.startswith('encoder') for n in ours.document.nodes)}"


@pytest.mark.xdist_group("cond")
def test_branches_are_graphs_of_their_node(exported: Exporter) -> None:
    content = collection(exported("cond").path)
    (owner,) = (node for graph in content["graphs"] for node in graph["nodes"] if node["label"] == "If")
    assert owner["subgraphIds"] == [f"{owner['id']}/then_branch", f"{owner['id']}/else_branch"]


@pytest.mark.xdist_group("bert")
def test_node_data_has_the_values_of_overlays(exported: Exporter) -> None:
    shown = modelexport.view(exported("bert").path)
    files = {name: json.loads(text) for name, text in shown.model_explorer_node_data().items()}
    assert {"kind", "confidence", "precision", "flops"} <= set(files)
    (graph,) = collection(exported("bert").path)["graphs"]
    results = files["flops"][graph["id"]]["results"]
    overlay = next(each for each in shown.data.overlays if each.id == "flops")
    assert sum(result["value"] for result in results.values()) == (overlay.totals or [0])[0]
    assert set(results) <= {node["id"] for node in graph["nodes"]}
    assert {result["value"] for result in files["kind"][graph["id"]]["results"].values()} <= {
        "exact",
        "merged",
        "folded",
    }
