"""Every rule of validate: no finding for an export, and findings for its own violation only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jsonschema
import msgspec
import onnx
import pytest
from tests.conftest import Exporter
from tests.support.breaking import read_document, with_owners, write_artifact

import modelexport
from modelexport.analysis.findings import Severity
from modelexport.analysis.validation.store_repair import repair
from modelexport.analysis.validation.validator import RULES, as_sarif, validate
from modelexport.errors import FileFormatError, InputError
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.document_codec import encode_document
from modelexport.storage.transaction import sidecar_path

pytestmark = [pytest.mark.sanity, pytest.mark.xdist_group("no_grad")]


@dataclasses.dataclass
class Artifact:
    path: Path
    model: onnx.ModelProto
    document: HierarchyDocument

    def save_model(self) -> None:
        self.path.write_bytes(self.model.SerializeToString())

    def save_document(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self.document, **changes)
        sidecar_path(self.path).write_bytes(encode_document(changed))


@pytest.fixture
def artifact(exported: Exporter, tmp_path: Path) -> Artifact:
    source = exported("no_grad").path
    model, document = onnx.load(source), read_document(source)
    return Artifact(write_artifact(tmp_path / "net.onnx", model, document), onnx.load(tmp_path / "net.onnx"), document)


def broken_rules(path: Path, **options: object) -> set[str]:
    return {finding.rule for finding in validate(path, **options).findings}


def test_file_of_another_exporter_is_to_be_tagged_and_not_repaired(artifact: Artifact) -> None:
    for node in artifact.model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    artifact.save_model()
    with_sidecar = {finding.fix for finding in validate(artifact.path).findings if finding.rule == "coverage"}
    sidecar_path(artifact.path).rename(artifact.path.with_name("other_hierarchy.json"))
    # That of another file with the same graph.
    report = repair(artifact.path, artifact.path.with_name("repaired.onnx"))
    assert report.origin == "sidecar other_hierarchy.json"
    artifact.path.with_name("other_hierarchy.json").unlink()
    sidecar_path(report.files[0]).unlink()
    without = {finding.fix for finding in validate(artifact.path).findings if finding.rule in ("coverage", "sidecar")}
    assert [len(fixes) for fixes in (with_sidecar, without)] == [1, 1]
    assert "modelexport repair" in with_sidecar.pop()
    assert "modelexport tag" in without.pop()
    damaged = artifact.path.with_name("net_hierarchy.json")
    damaged.write_text("{", encoding="utf-8")
    assert "modelexport repair" in next(f.fix for f in validate(artifact.path).findings if f.rule == "sidecar")


def test_exported_file_violates_no_rule(artifact: Artifact) -> None:
    report = validate(artifact.path, check_contamination=True, baseline=artifact.path)
    assert report.findings == ()
    assert report.is_valid
    assert [rule.id for rule in report.rules] == [rule.id for rule in RULES]
    assert not any(rule.skipped for rule in report.rules)


def _unknown_operator(artifact: Artifact) -> None:
    artifact.model.graph.node[0].op_type = "NoSuchOperator"
    artifact.save_model()


def _wrong_shape(artifact: Artifact) -> None:
    artifact.model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 77
    artifact.save_model()


def _no_sidecar(artifact: Artifact) -> None:
    sidecar_path(artifact.path).unlink()


def _damaged_sidecar(artifact: Artifact) -> None:
    sidecar_path(artifact.path).write_text('{"schema_version": 1}')


def _other_graph(artifact: Artifact) -> None:
    artifact.save_document(graph_hash="0" * 32)


def _unowned(artifact: Artifact) -> None:
    artifact.save_document(nodes=artifact.document.nodes[1:])


def _surplus(artifact: Artifact) -> None:
    extra = msgspec.structs.replace(artifact.document.nodes[0], id="nowhere")
    artifact.save_document(nodes=(*artifact.document.nodes, extra))


def _no_tag(artifact: Artifact) -> None:
    node = artifact.model.graph.node[0]
    node.doc_string = node.doc_string.replace('"hierarchy_tags":["/', '"hierarchy_tags":["//')
    artifact.save_model()


def _wrong_count(artifact: Artifact) -> None:
    node = artifact.model.graph.node[0]
    node.doc_string = node.doc_string.replace('"hierarchy_count":1', '"hierarchy_count":2')
    artifact.save_model()


def _stores_differ(artifact: Artifact) -> None:
    node = artifact.model.graph.node[0]
    next(entry for entry in node.metadata_props if entry.key.endswith(".module")).value = "trained"
    artifact.save_model()


def _doc_string_gone(artifact: Artifact) -> None:
    artifact.model.graph.node[0].doc_string = ""
    artifact.save_model()


def _other_tag_everywhere(artifact: Artifact) -> None:
    first = artifact.document.nodes[0]
    nodes = (msgspec.structs.replace(first, tag="/NoGrad/Elsewhere"), *artifact.document.nodes[1:])
    write_artifact(artifact.path, artifact.model, msgspec.structs.replace(artifact.document, nodes=nodes))


def _child_unlisted(artifact: Artifact) -> None:
    root = msgspec.structs.replace(artifact.document.modules[0], children={})
    artifact.save_document(modules=(root, *artifact.document.modules[1:]))


def _call_misnumbered(artifact: Artifact) -> None:
    calls = list(artifact.document.calls)
    calls[1], calls[-1] = calls[-1], calls[1]
    artifact.save_document(calls=tuple(calls))


def _boundary_nowhere(artifact: Artifact) -> None:
    def misplaced(call: modelexport.HierarchyDocument) -> object:
        inputs = tuple(msgspec.structs.replace(b, tensor="gone") for b in call.inputs)
        return msgspec.structs.replace(call, inputs=inputs)

    calls = artifact.document.calls
    artifact.save_document(calls=(*calls[:-1], misplaced(calls[-1])))


def _other_maker(artifact: Artifact) -> None:
    tensors = artifact.document.tensors
    wrong = next(number for number, tensor in enumerate(tensors) if tensor.producer == "trained.lin")
    changed = msgspec.structs.replace(tensors[wrong], producer="frozen.lin")
    artifact.save_document(tensors=(*tensors[:wrong], changed, *tensors[wrong + 1 :]))


_BREAKS: list[tuple[str, Callable[[Artifact], None], set[str]]] = [
    # A change and the rules that it violates: an unknown operator also changes the graph.
    ("onnx-checker", _unknown_operator, {"onnx-checker", "sidecar-hash"}),
    ("shape-inference", _wrong_shape, {"shape-inference", "boundaries"}),
    ("sidecar", _no_sidecar, {"sidecar"}),
    ("sidecar", _damaged_sidecar, {"sidecar"}),
    ("sidecar-hash", _other_graph, {"sidecar-hash"}),
    ("coverage", _unowned, {"coverage"}),
    ("coverage", _surplus, {"coverage"}),
    ("tag-format", _no_tag, {"tag-format"}),
    ("tag-format", _wrong_count, {"tag-format"}),
    ("stores-agree", _stores_differ, {"stores-agree"}),
    ("stores-agree", _doc_string_gone, {"stores-agree"}),
    ("tags-exist", _other_tag_everywhere, {"tags-exist"}),
    ("hierarchy", _child_unlisted, {"hierarchy"}),
    ("hierarchy", _call_misnumbered, {"hierarchy"}),
    ("boundaries", _boundary_nowhere, {"boundaries"}),
    ("tensors", _other_maker, {"tensors"}),
]


@pytest.mark.parametrize(
    ("rule", "breaking", "expected"), _BREAKS, ids=[f"{rule}-{b.__name__.strip('_')}" for rule, b, _ in _BREAKS]
)
def test_each_rule_finds_its_own_violation_and_no_other_rule_does(
    artifact: Artifact, rule: str, breaking: Callable[[Artifact], None], expected: set[str]
) -> None:
    breaking(artifact)
    report = validate(artifact.path)
    assert rule in expected
    assert {finding.rule for finding in report.findings} == expected
    assert all(finding.message and finding.fix for finding in report.findings)
    assert report.is_valid == (breaking is _no_sidecar)


def test_every_rule_has_a_test_that_violates_it() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, _, _ in _BREAKS} | {"contamination", "topology"}


def test_topology_names_the_first_node_that_differs(artifact: Artifact, tmp_path: Path) -> None:
    plain = modelexport.strip_hierarchy(artifact.model)
    (tmp_path / "plain.onnx").write_bytes(plain.SerializeToString())
    assert broken_rules(artifact.path, baseline=tmp_path / "plain.onnx") == set()
    plain.graph.node[2].name = "renamed"
    (tmp_path / "plain.onnx").write_bytes(plain.SerializeToString())
    report = validate(artifact.path, baseline=tmp_path / "plain.onnx")
    assert [finding.rule for finding in report.findings] == ["topology"]
    assert "number 2" in report.findings[0].message


def test_contamination_is_reported_as_a_case(artifact: Artifact) -> None:
    node = next(record for record in artifact.document.nodes if record.module == "trained.lin")
    write_artifact(artifact.path, artifact.model, with_owners(artifact.document, {node.id: "frozen.norm"}))
    assert broken_rules(artifact.path) == set(), "the three stores agree, so only the owner is wrong"
    report = validate(artifact.path, check_contamination=True)
    (case,) = report.cases
    assert (case.node, case.module, case.kind) == (node.id, "frozen.norm", "exact")
    assert case.tags == ("/NoGrad/Block.frozen/LayerNorm",)
    assert case.supported_modules == ("trained.lin",)
    assert case.supported_tags == ("/NoGrad/Block.trained",)
    assert 0.5 < case.confidence <= 1
    assert "frozen.norm" in case.reason
    assert report.errors == 1


def test_many_findings_of_one_rule_are_counted_and_not_all_listed(artifact: Artifact) -> None:
    artifact.save_document(nodes=())
    report = validate(artifact.path)
    count = next(rule.findings for rule in report.rules if rule.id == "coverage")
    assert count == len(artifact.model.graph.node)
    nodes = [msgspec.structs.replace(artifact.document.nodes[0], id=f"nowhere_{n}") for n in range(50)]
    artifact.save_document(nodes=(*artifact.document.nodes, *nodes))
    listed = [finding for finding in validate(artifact.path).findings if finding.rule == "coverage"]
    assert len(listed) == 21
    assert "30 more" in listed[-1].message
    assert listed[-1].severity is Severity.NOTE


def test_sarif_matches_its_schema(artifact: Artifact) -> None:
    _stores_differ(artifact)
    log = as_sarif(validate(artifact.path))
    jsonschema.validate(log, _SARIF_PARTS)
    run = log["runs"][0]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "stores-agree"
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == artifact.document.nodes[0].id


def _lose_doc_strings(artifact: Artifact) -> None:
    for node in artifact.model.graph.node:
        node.doc_string = ""
    artifact.save_model()


def _lose_properties(artifact: Artifact) -> None:
    for node in artifact.model.graph.node:
        kept = [entry for entry in node.metadata_props if "modelexport" not in entry.key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    artifact.save_model()


@pytest.mark.parametrize("losing", [_lose_doc_strings, _lose_properties, _stores_differ, _no_tag])
def test_repair_writes_the_nodes_stores_from_the_sidecar(
    artifact: Artifact, losing: Callable[[Artifact], None]
) -> None:
    before = artifact.path.read_bytes()
    losing(artifact)
    assert validate(artifact.path).findings
    done = repair(artifact.path, overwrite=True)
    assert done.origin == "sidecar"
    assert validate(artifact.path, check_contamination=True).findings == ()
    assert onnx.load_from_string(before).graph == onnx.load(artifact.path).graph


@pytest.mark.parametrize("losing", [_no_sidecar, _damaged_sidecar, _other_graph, _unowned])
def test_repair_writes_a_sidecar_from_node_metadata(artifact: Artifact, losing: Callable[[Artifact], None]) -> None:
    losing(artifact)
    done = repair(artifact.path, overwrite=True)
    assert done.origin == "doc_string"
    assert done.missing
    assert validate(artifact.path, check_contamination=True).is_valid
    again = read_document(artifact.path)
    assert {n.id: n.module for n in again.nodes} == {n.id: n.module for n in artifact.document.nodes}


def test_repair_is_refused_without_a_hierarchy(artifact: Artifact) -> None:
    _no_sidecar(artifact)
    bare = modelexport.strip_hierarchy(artifact.model)
    for node in bare.graph.node:
        del node.metadata_props[:]
    artifact.path.write_bytes(bare.SerializeToString())
    with pytest.raises(InputError, match="no hierarchy of ours to repair from"):
        repair(artifact.path, overwrite=True)
    assert artifact.path.read_bytes() == bare.SerializeToString()


# The parts of the SARIF 2.1.0 schema that a log like ours uses; what it marks as required is required here.
_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_SARIF_PARTS = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {"type": "object", "required": ["driver"]},
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message", "ruleId", "level"],
                            "properties": {
                                "message": _TEXT,
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "locations": {"type": "array", "items": {"required": ["physicalLocation"]}},
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize(("content", "error"), [(None, InputError), (b"", FileFormatError), (b"\xff", FileFormatError)])
def test_file_that_is_not_a_model_is_refused(tmp_path: Path, content: bytes | None, error: type[Exception]) -> None:
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=r"net\.onnx"):
        validate(path)
