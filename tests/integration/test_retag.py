"""Retagging: the hierarchy through every tool that rewrites ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.conftest import Exporter
from tests.support import rewriting

import modelexport
from modelexport.analysis.retagging import RetagReport, retag

pytestmark = pytest.mark.integration

Retagged = Callable[[str, str], tuple[Path, RetagReport]]


@pytest.fixture
def retagged(exported: Exporter, tmp_path: Path) -> Retagged:
    def run(name: str, tool: str) -> tuple[Path, RetagReport]:
        rewritten = tmp_path / "rewritten.onnx"
        rewriting.rewrite(tool, exported(name).path, rewritten, exported(name).feeds)
        return rewritten, retag(rewritten, exported(name).path, tmp_path / "retagged.onnx")

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tool", rewriting.TOOLS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in rewriting.MODELS])
def test_every_node_is_owned_by_a_module_it_touches_and_untouched_ones_keep_theirs(
    exported: Exporter, retagged: Retagged, name: str, tool: str
) -> None:
    rewritten, report = retagged(name, tool)
    verdict = rewriting.judge(exported(name).path, exported(name).document, rewritten, report.document)
    assert verdict.unowned == []
    assert verdict.moved == []
    assert verdict.strangers == []
    assert report.document.coverage == 1.0
    assert report.exact + report.projected + report.inferred == verdict.nodes


@pytest.mark.xdist_group("bert")
@pytest.mark.filterwarnings("ignore")
def test_rewritten_file_stays_what_it_is_but_for_the_hierarchy(exported: Exporter, retagged: Retagged) -> None:
    rewritten, report = retagged("bert", "onnxruntime extended")
    plain = modelexport.strip_hierarchy(onnx.load(rewritten))
    written = report.files[0]
    assert modelexport.strip_hierarchy(onnx.load(written)) == plain
    loaded = modelexport.load(written)
    assert loaded.document == report.document
    assert {identity: stored.module for identity, stored in loaded.stored.items()} == {
        node.id: node.module for node in report.document.nodes
    }


@pytest.mark.xdist_group("resnet")
@pytest.mark.filterwarnings("ignore")
def test_activation_fused_into_a_convolution_is_named_beside_convolution_and_norm(
    exported: Exporter, retagged: Retagged
) -> None:
    _, report = retagged("resnet", "onnxruntime extended")
    fused = [node for node in report.document.nodes if node.op.endswith("FusedConv")]
    assert fused
    classes = {call.id: call.tag for call in report.document.calls}
    modules = {module.path: module.class_name for module in report.document.modules}
    for node in fused:
        calls = [call for call in report.document.calls if call.id in (node.module, *node.contributors)]
        assert {"Conv2d", "BatchNorm2d", "ReLU"} <= {modules[call.path] for call in calls}, classes[node.module]


@pytest.mark.xdist_group("bert")
def test_retagging_an_untouched_file_changes_nothing(exported: Exporter, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    onnx.save(modelexport.strip_hierarchy(onnx.load(exported("bert").path)), copy)
    report = retag(copy, exported("bert").path, overwrite=True)
    assert report.document.nodes == exported("bert").document.nodes
    assert [c.outputs for c in report.document.calls] == [c.outputs for c in exported("bert").document.calls]


@pytest.mark.xdist_group("bert")
def test_model_that_has_nothing_in_common_is_refused(exported: Exporter, tmp_path: Path) -> None:
    stranger = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2] q) => (float[2] r) { r = Relu(q) }'
    )
    path = tmp_path / "stranger.onnx"
    onnx.save(stranger, path)
    with pytest.raises(modelexport.InputError, match=r"another model.*--by-value"):
        retag(path, exported("bert").path, overwrite=True)
    assert onnx.load(path) == stranger


@pytest.mark.xdist_group("bert")
def test_file_without_hierarchy_cannot_be_carried_over(exported: Exporter, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    onnx.save(modelexport.strip_hierarchy(onnx.load(exported("bert").path)), plain)
    with pytest.raises(modelexport.FileFormatError, match="no hierarchy"):
        retag(exported("bert").path, plain, tmp_path / "out.onnx")
