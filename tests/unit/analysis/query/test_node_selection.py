"""`select` on exported models: names for each tool, and errors of bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jsonschema
import onnx
import pytest
from tests.conftest import Exporter
from tests.support.command import Outcome

from modelexport.analysis.query.node_selection import select, selection_schema
from modelexport.analysis.query.selector_eval import select_nodes
from modelexport.storage.transaction import sidecar_path

# --- select -----------------------------------------------------------------------------------------------------

MODELS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("bert", "cnn", "shared_block", "cond")]


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize(
    ("form", "argument"),
    [
        ("ort-exclude", "nodes_to_exclude"),
        ("ort-block-list", "node_block_list"),
        ("olive", "nodes_to_exclude"),
        ("nncf", "names"),
    ],
)
def test_each_tool_gets_the_names_under_its_own_argument(
    exported: Exporter, command: Callable[..., Outcome], form: str, argument: str
) -> None:
    ours = exported("bert")
    pattern = "class:BertEmbeddings or class:LayerNorm"
    wanted = {node.id for node in select_nodes(ours.document, pattern)}
    names = [node.name for node in onnx.load(ours.path).graph.node if node.output[0] in wanted]
    content = json.loads(command("select", ours.path, pattern, "--format", form).stdout)
    if form == "olive":
        # Olive's preparation would fuse nodes before their names are looked for.
        assert (content.pop("type"), content.pop("quant_preprocess")) == ("OnnxQuantization", False)
    assert content == {argument: names}
    assert command("select", ours.path, pattern).stdout.split() == names


@pytest.mark.xdist_group("cond")
def test_nncf_format_omits_nodes_of_subgraphs_because_nncf_rejects_their_names(
    exported: Exporter, command: Callable[..., Outcome]
) -> None:
    path = exported("cond").path
    main = [node.name for node in onnx.load(path).graph.node]
    whole = json.loads(command("select", path, "**", "--format", "ort-exclude").stdout)["nodes_to_exclude"]
    outcome = command("select", path, "**", "--format", "nncf")
    assert json.loads(outcome.stdout) == {"names": main}
    assert len(whole) > len(main)
    assert f"{len(whole) - len(main)} nodes in subgraphs" in outcome.stderr
    inside = next(node.id for node in select(path, "**").nodes if node.nested)
    refused = command("select", path, f"node:'{inside}'", "--format", "nncf")
    assert refused.code == 2
    assert "subgraphs" in refused.error


@pytest.mark.xdist_group("cnn")
def test_nodes_count_for_contributors_unless_owners_only(exported: Exporter, command: Callable[..., Outcome]) -> None:
    path = exported("cnn").path
    selection = select(path, "class:Conv2d")
    assert [node.through for node in selection.nodes] == ["contributor", "contributor"]
    assert [node.module for node in selection.nodes] == ["features.0.norm", "features.2.norm"]
    outcome = command("select", path, "class:Conv2d")
    assert outcome.code == 0
    assert "other modules own 2 of the 2 nodes" in outcome.stderr
    refused = command("select", path, "class:Conv2d", "--owners-only")
    assert refused.code == 2
    assert "picks no node" in refused.stderr
    assert {node.through for node in select(path, "class:BatchNorm2d").nodes} == {"owner"}


@pytest.mark.parametrize("name", MODELS)
def test_json_of_a_selection_matches_its_schema(exported: Exporter, command: Callable[..., Outcome], name: str) -> None:
    outcome = command("select", exported(name).path, "** and not op:Add or class:NoSuch", "--format", "json")
    assert outcome.code == 0
    content = json.loads(outcome.stdout)
    jsonschema.validate(content, json.loads(json.dumps(selection_schema())))
    assert json.loads(command("schema", "select").stdout)["title"] == "modelexport selection"
    nodes = {node.id: node for node in exported(name).document.nodes}
    assert [n["id"] for n in content["nodes"]] == [i for i, node in nodes.items() if node.op != "Add"]
    assert all(nodes[n["id"]].module == n["module"] and nodes[n["id"]].tag == n["tag"] for n in content["nodes"])
    assert content["unmatched"][-1] == "class:NoSuch"
    assert "nothing matches 'class:NoSuch'" in outcome.stderr


@pytest.fixture
def renamed(exported: Exporter, tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """The shared block with other node names: they are no part of the graph's identity."""

    def rename(names: dict[str, str]) -> Path:
        proto = onnx.load(exported("shared_block").path)
        for node in proto.graph.node:
            node.name = names.get(node.output[0], node.name)
        path = tmp_path / "renamed.onnx"
        path.write_bytes(proto.SerializeToString())
        shutil.copyfile(sidecar_path(exported("shared_block").path), sidecar_path(path))
        return path

    return rename


@pytest.mark.xdist_group("shared_block")
def test_nodes_without_or_with_shared_names_are_refused_where_only_names_count(
    renamed: Callable[[dict[str, str]], Path], command: Callable[..., Outcome]
) -> None:
    path = renamed({"relu": "", "relu_1": ""})
    outcome = command("select", path, "blk@0 or blk@1", "--format", "ort-exclude")
    assert outcome.code == 2
    assert "2 of the 8 nodes have no name (Relu 'relu', Relu 'relu_1')" in outcome.stderr
    assert command("select", path, "blk@0", "--format", "json").code == 0
    assert command("select", path, "blk@2", "--format", "ort-exclude").code == 0
    path = renamed({"relu": "same", "relu_1": "same"})
    outcome = command("select", path, "blk@0", "--format", "human")
    assert outcome.code == 2
    assert "share their name with nodes that were not selected (Relu 'same')" in outcome.stderr
    # Nothing is taken by mistake where all that share a name are picked.
    both = command("select", path, "blk@0 or blk@1", "--format", "human")
    assert both.stdout.split().count("same") == 1
